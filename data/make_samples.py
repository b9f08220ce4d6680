"""Write data/sample/: one small demo task (SST-2) and tiny files in the layout of every other task.

Every sentence comes from the templates and word lists below, so nothing here is copied from a published data set and
a score on these files says nothing about GLUE. One seed decides all bytes: python data/make_samples.py [FOLDER]
"""
import random
import sys
from pathlib import Path

SEED = 2019
SST_SIZES = {"train": 800, "dev": 300, "test": 300}
TINY_SIZES = {"MNLI": {"train": 24, "dev_matched": 12, "dev_mismatched": 12, "test_matched": 10, "test_mismatched": 10},
              "AX": {"diagnostic": 9}, "other": {"train": 24, "dev": 12, "test": 10}}
LABEL_NOISE = 0.04   # share of SST-2 training labels that are flipped; dev is clean
HELD_OUT = 0.4       # share of opinion words in dev and test that never occur in train


def words(text):
    return [item.strip() for item in text.split(",")]


# ---- SST-2. OPINIONS[polarity] = (words of every split, words of dev and test only): the second half needs pretraining.
OPINIONS = {
    1: (words("charming, clever, delightful, excellent, superb, lovely, impressive, wonderful, great, brilliant, pleasant, "
              "perfect, refreshing, splendid, enjoyable, beautiful, outstanding, satisfying, terrific, likeable"),
        words("marvellous, fantastic, magnificent, first-rate, exquisite, admirable, amazing, stunning, elegant, "
              "enchanting, remarkable, gorgeous, top-notch, flawless, phenomenal, fabulous")),
    0: (words("boring, dull, awful, terrible, poor, weak, disappointing, bad, dreadful, ugly, annoying, pointless, "
              "horrible, lazy, mediocre, unpleasant, tiresome, careless, ridiculous, sloppy"),
        words("abysmal, lousy, lacklustre, atrocious, appalling, irritating, pathetic, dismal, laughable, second-rate, "
              "miserable, dire, hopeless, uninspired, woeful, shabby")),
}
VERDICTS = {
    1: (words("i would recommend it to anyone, it was worth every penny, we smiled all the way home, it made my whole week, "
              "i would gladly pay for it again, my family still talks about it with joy, i loved every minute, "
              "we could not have asked for more, it kept us happy from start to finish, i am very glad we chose it"),
        words("five stars from me, i keep telling friends how good it is, we cannot wait for the next one, "
              "it won me over at once, i am already a devoted fan, it left everyone beaming, it exceeded all my hopes, "
              "everybody in our group adored it")),
    0: (words("i want my money back, nobody should pay for this, we regretted it at once, it spoiled the whole evening, "
              "i would not wish it on anyone, we gave up halfway, i hated every minute, "
              "it was a complete waste of time, we were sorry we ever tried it, i left in a bad mood"),
        words("save your cash, one star is too generous, it let everyone down, we asked for a refund, "
              "i warn all my friends away from it, it left us groaning, never again for me, "
              "everybody in our group loathed it")),
}
# One kind of thing in each entry: things, parts, a participle, then praise and blame for this kind only (as in OPINIONS).
KINDS = [
    ("film, comedy, thriller, drama", "plot, acting, ending, dialogue, music", "watched",
     ("gripping, moving, funny", "riveting, hilarious, touching"),
     ("predictable, slow, shallow", "tedious, contrived, corny")),
    ("meal, lunch, supper, breakfast", "soup, sauce, bread, dessert, service", "eaten",
     ("delicious, fresh, tasty", "mouthwatering, scrumptious"), ("bland, greasy, burnt", "tasteless, stale, soggy")),
    ("book, novel, memoir, short story", "prose, plot, opening, last chapter, humour", "read",
     ("absorbing, witty, wise", "engrossing, insightful"), ("wordy, dry, confusing", "long-winded, muddled, plodding")),
    ("journey, tour, train ride, crossing", "view, cabin, guide, hotel, food", "taken",
     ("relaxing, smooth, scenic", "restful, breathtaking"), ("exhausting, cramped, noisy", "gruelling, bumpy, stressful")),
    ("drill, saw, kitchen knife, torch", "handle, grip, design, manual, finish", "owned",
     ("sturdy, handy, reliable", "dependable, durable"), ("flimsy, clumsy, useless", "shoddy, wobbly, fragile")),
    ("concert, album, play, musical", "singing, opening, staging, lighting, sound", "heard",
     ("lively, graceful, thrilling", "electrifying, spirited"), ("lifeless, out of tune, shapeless", "soulless, grating")),
]
DEGREES = words("really, quite, truly, simply, rather, very, just plain, thoroughly, frankly")
OPENERS = words("for me, in the end, to be honest, as it turned out, all in all, after a week, on a rainy sunday, "
                "once again")
NEGATIONS = words("not at all, not in the least, never once, far from, anything but, by no means, hardly, certainly not")


def article(phrase):
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def opinion(rng, split, label):
    """One SST-2 style sentence whose overall polarity is `label` (1 praise, 0 blame)."""
    things, parts, seen, *special = rng.choice(KINDS)
    thing, (part, other) = rng.choice(words(things)), rng.sample(words(parts), 2)

    def pick(lists):
        return rng.choice(lists[1] if split != "train" and rng.random() < HELD_OUT else lists[0])

    def adjective(polarity, whole=False):   # only the whole thing is called "delicious" or "sturdy", its parts are not
        fitting = special[1 - polarity]
        return pick([words(text) for text in fitting] if whole and rng.random() < 0.4 else OPINIONS[polarity])

    degree, opener, no = rng.choice(DEGREES), rng.choice(OPENERS), rng.choice(NEGATIONS)
    good, bad = adjective(label), adjective(1 - label)             # "good": the word that agrees with the label
    whole, unlike = adjective(label, True), adjective(1 - label, True)
    agreeing, verdict = adjective(label), pick(VERDICTS[label])
    while agreeing == good:
        agreeing = adjective(label)
    patterns = [
        # plain: the words say it
        (5, f"{opener} , the {part} of this {thing} was {degree} {good}"),
        (5, f"what {article(whole)} {thing} : the {part} is {good} and {verdict}"),
        (5, f"the {part} of this {thing} is {good} and {agreeing} , {verdict}"),
        (5, f"i have rarely {seen} {article(thing)} so {whole} , {verdict}"),
        # negation: the words say the opposite
        (2, f"the {part} of this {thing} is {no} {bad} , {verdict}"),
        (2, f"{opener} , this {thing} was {no} {unlike}"),
        (1, f"nobody who has {seen} this {thing} could call the {part} {bad}"),
        # contrast: the main clause decides
        (2, f"the {part} is {degree} {bad} , but the {thing} as a whole is {whole} and {verdict}"),
        (2, f"although the {part} and the {other} were {bad} , {verdict}"),
        (2, f"{opener} , it is {article(whole)} {thing} , even if the {part} is {bad}"),
        # mixed: expectation against outcome
        (2, f"i expected {article(unlike)} {thing} and got {article(whole)} one instead"),
    ]
    if label == 0:   # irony: praise that means blame, and the other way round
        patterns.append((1, f"oh {adjective(1)} , another {thing} where the {part} is {good}"))
    else:
        patterns.append((1, f"my only complaint about this {whole} {thing} is that it had to end"))
    return rng.choices([text for _, text in patterns], [weight for weight, _ in patterns])[0]


def write_sst(folder):
    rng, seen = random.Random(f"{SEED} SST-2"), set()
    for split, size in SST_SIZES.items():
        rows = []
        while len(rows) < size:
            label = len(rows) % 2
            sentence = opinion(rng, split, label)
            if sentence not in seen:
                seen.add(sentence)
                rows.append([sentence + " ", str(label)])   # the official sentences end in a space, too
        rng.shuffle(rows)
        if split == "train":
            for row in rng.sample(rows, round(LABEL_NOISE * size)):
                row[1] = str(1 - int(row[1]))
        if split == "test":
            rows = [[str(index), sentence] for index, (sentence, _) in enumerate(rows)]
        write(folder / "SST-2" / f"{split}.tsv", ["index\tsentence" if split == "test" else "sentence\tlabel"], rows)


# ---- The tiny files: little scenes, told again, changed or denied.
PEOPLE = words("The baker, Zoë, A retired pilot, My neighbour, The café owner, Señor Peña, The night nurse, Our teacher")
ACTIONS = [words(line) for line in (     # what was done, the same in other words, what contradicts it, a chore
    "mended the fence, repaired the fence, left the fence broken, mend a fence",
    "sold the old piano, found a buyer for the old piano, kept the old piano, sell a piano",
    "planted two pear trees, put two pear trees in the ground, refused to plant any tree, plant a pear tree",
    "missed the last bus, came too late for the last bus, caught the last bus, find a late bus",
    "baked a dozen rolls, made twelve rolls, baked nothing, bake crisp rolls",
    "painted the door green, gave the door a coat of green paint, left the door unpainted, paint a door",
    "lost the house keys, could not find the house keys, never lost a key, open a lock without a key",
    "read the letter aloud, read out the letter, never opened the letter, write a short letter")]
PLACES = words("behind the school, near the harbour, in the village, at the old mill, next to the station, by the river")
TIMES = words("on Tuesday, last winter, before breakfast, during the storm, after the concert")
REASONS = words("a friend had asked for it, the weather was fine, the rent was due, nobody else was free")
FITS = [words(line) for line in (     # WNLI: container, content, why "it" is the container, why "it" is the content
    "suitcase, trumpet, too small, too large", "niche, statue, too low, too tall", "garage, van, too narrow, too wide",
    "jar, ladle, too short, too long", "cart, barrel, too small, too bulky", "drawer, atlas, too shallow, too thick")]
PEOPLE_ZH, PLACES_ZH = words("邻居,老师,我的表哥,那位护士,面包师傅,退休的船长"), words("河边,学校后面,车站旁,村子里,老磨坊")
ACTIONS_ZH = [words(line) for line in (     # as ACTIONS
    "修好了围栏,把围栏修好了,没有修围栏,修围栏", "卖掉了旧钢琴,把旧钢琴卖了,留下了旧钢琴,卖旧钢琴",
    "种了两棵梨树,把两棵梨树种下了,一棵树也没种,种梨树", "错过了末班车,没赶上末班车,赶上了末班车,查末班车时间",
    "把门漆成了绿色,给门刷了绿漆,没有给门刷漆,给门刷漆", "丢了钥匙,找不到钥匙了,从没丢过钥匙,配钥匙")]
REASONS_ZH = words("朋友请他帮忙,那天天气很好,家里急着用钱")
ASPECTS_ZH = words("酒店的房间,酒店的早餐,这本书的内容,这台电脑的屏幕,前台的服务,这款手机的电池")
OPINIONS_ZH = {1: words("非常好,让人满意,超出预期,值得推荐"), 0: words("太差了,让人失望,不值这个价,问题很多")}
VERDICTS_ZH = {1: words("下次还会再来,朋友们也都喜欢"), 0: words("以后不会再买,真后悔没看评价")}
NLI = ["neutral", "entailment", "contradiction"]

# task: labels, columns of train and dev, columns of test; CoLA's train and dev files are the only ones without a header.
MNLI_TEXT = ("index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse|"
             "sentence1|sentence2")
LAYOUTS = {
    "CoLA": (["0", "1"], "source|label|mark|sentence", "index|sentence"),
    "MRPC": (["0", "1"], "Quality|#1 ID|#2 ID|#1 String|#2 String", "index|#1 ID|#2 ID|#1 String|#2 String"),
    "STS-B": (["0", "1", "3", "4", "5"], "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score",
              "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"),
    "QQP": (["0", "1"], "id|qid1|qid2|question1|question2|is_duplicate", "id|question1|question2"),
    "MNLI": (NLI, MNLI_TEXT + "|label1|gold_label", MNLI_TEXT),
    "QNLI": (["not_entailment", "entailment"], "index|question|sentence|label", "index|question|sentence"),
    "RTE": (["not_entailment", "entailment"], "index|sentence1|sentence2|label", "index|sentence1|sentence2"),
    "WNLI": (["0", "1"], "index|sentence1|sentence2|label", "index|sentence1|sentence2"),
    "AX": (NLI, "", "index|sentence1|sentence2"),
    "XNLI": (["neutral", "entailment", "contradictory"], "premise|hypo|label", "premise|hypo"),
    "LCQMC": (["0", "1"], "text_a|text_b|label", "text_a|text_b"),
    "ChnSentiCorp": (["0", "1"], "label|text_a", "text_a"),
}
MNLI_DEV = MNLI_TEXT + "|label1|label2|label3|label4|label5|gold_label"


def texts(rng, task, label):
    """The one or two texts of one row of `task`; `label` is one of the task's labels."""
    (did, same, contrary, chore), (_, other, _, errand) = rng.sample(ACTIONS, 2)
    who, where, when, why = (rng.choice(items) for items in (PEOPLE, PLACES, TIMES, REASONS))
    did_zh, same_zh, contrary_zh, chore_zh = rng.choice(ACTIONS_ZH)
    who_zh, where_zh = rng.choice(PEOPLE_ZH), rng.choice(PLACES_ZH)
    scene = f"{who} {did} {where} {when}."
    if task == "CoLA":
        verb, rest = did.split(" ", 1)
        wrong = rng.choice([f"{who} {rest} {where} {verb} {when}.", f"{who} has been {did} {where} {when}.",
                            f"{who} {did} {where} the {when}."])
        return [scene if label == "1" else wrong]
    if task in ("MRPC", "STS-B"):
        told = {"0": f"Somebody else {other} {rng.choice(PLACES)}.", "1": f"{who} {other} {when}.", "3": f"Someone {same}.",
                "4": f"{who} {same} {when}.", "5": f"{who} {same} {where} {when}."}
        return [scene, told["5" if task == "MRPC" and label == "1" else label]]
    if task == "QQP":
        ask = rng.choice(["How do I {} {}?", "How can I {} {}?"])
        return [ask.format(chore, where), f"What is the best way to {chore if label == '1' else errand} {where}?"]
    if task == "QNLI":
        elsewhere = f"{when[0].upper()}{when[1:]} somebody {other} {where}."
        return [f"Who {did} {when}?", scene if label == "entailment" else elsewhere]
    if task == "WNLI":
        outer, inner, outer_why, inner_why = rng.choice(FITS)
        (right, reason), (wrong, _) = rng.sample([(outer, outer_why), (inner, inner_why)], 2)
        return [f"{who} could not get the {inner} into the {outer} {when} because it was {reason}.",
                f"The {right if label == '1' else wrong} was {reason}."]
    if task in ("RTE", "MNLI", "AX"):
        label = {"not_entailment": rng.choice(["neutral", "contradiction"])}.get(label, label)
        return [scene, {"entailment": rng.choice([f"{who} {same}.", f"Someone {did} {where}."]),
                        "neutral": f"{who} {did} because {why}.",
                        "contradiction": rng.choice([f"{who} {contrary}.", f"Nobody {did} {when}."])}[label]]
    if task == "XNLI":
        told = {"entailment": f"{who_zh}{same_zh}。", "contradictory": f"{who_zh}{contrary_zh}。",
                "neutral": f"{who_zh}{did_zh}，因为{rng.choice(REASONS_ZH)}。"}
        return [f"昨天{who_zh}在{where_zh}{did_zh}。", told[label]]
    if task == "LCQMC":
        return [f"在{where_zh}怎么{chore_zh}？", f"{where_zh}{chore_zh}" + ("有什么办法？" if label == "1" else "要花多少钱？")]
    polarity = int(label)
    return [f"{rng.choice(ASPECTS_ZH)}{rng.choice(OPINIONS_ZH[polarity])}，{rng.choice(VERDICTS_ZH[polarity])}。"]


def row(rng, task, split, index, label, text):
    """Every column that any layout of the task has, by name."""
    first, second = text[0], text[-1]
    columns = {"index": index, "label": label, "sentence": second, "question": first, "sentence1": first,
               "sentence2": second, "premise": first, "hypo": second, "text_a": first, "text_b": second}
    if task == "CoLA":
        columns.update(source="mk19", mark="" if label == "1" else "*")
    elif task == "MRPC":
        columns.update({"Quality": label, "#1 ID": 70001 + 2 * index, "#2 ID": 70002 + 2 * index,
                        "#1 String": first, "#2 String": second})
    elif task == "STS-B":
        score = min(5.0, int(label) + rng.choice([0, 0.2, 0.25, 0.4, 0.6]))
        columns.update(genre="main-stories", filename="scenes", year="2019", old_index=f"{index:04d}", source1="none",
                       source2="none", score=f"{score:.3f}")
    elif task == "QQP":   # train and dev ids are neither sorted nor dense; test ids count from 0
        columns.update(id=index if split == "test" else 9000 - 7 * index, qid1=2 * index + 1, qid2=2 * index + 2,
                       question1=first, question2=second, is_duplicate=label)
    elif task == "MNLI":
        votes = [label, label, label, rng.choice(NLI), rng.choice(NLI)]
        prompt = 100 + 3 * index
        columns.update(promptID=prompt, pairID=f"{prompt}{label[0]}", gold_label=label,
                       genre=rng.choice(["letters", "verbatim"] if "mismatched" in split else ["fiction", "travel"]),
                       **{f"label{number}": vote for number, vote in enumerate(votes, start=1)})
        for name in ("sentence1", "sentence2"):   # flat stand-ins for the official parses
            tokens = columns[name].replace(".", " .").split()
            columns[f"{name}_binary_parse"] = " ( ".join(["", *tokens]).strip() + " )" * len(tokens)
            columns[f"{name}_parse"] = f"(ROOT (S {' '.join(f'(X {token})' for token in tokens)}))"
    return {name: str(value) for name, value in columns.items()}


# What official and home-made files really contain. (task, split, row): (column, change of that text)
QUIRKS = {
    ("MRPC", "train", 2): ("#1 String", lambda text: '"' + text),                       # never closed
    ("MRPC", "train", 9): ("#2 String", lambda text: text.replace(" the ", ' the " ', 1)),
    ("MRPC", "dev", 4): ("#2 String", lambda text: text[:-1] + ' ."'),
    ("MRPC", "test", 1): ("#1 String", lambda text: '" ' + text),
    ("CoLA", "train", 5): ("sentence", lambda text: f'"{text}"'),
    ("STS-B", "dev", 3): ("sentence1", lambda text: text.replace(" ", "\u00a0", 1)),     # a no-break space
    ("QNLI", "test", 6): ("sentence", lambda text: text.replace(" ", " \u2028", 1)),     # str.splitlines() breaks here
    ("RTE", "train", 7): ("sentence1", lambda text: text[:-1] + " [SEP] and went home."),   # text, not a special token
}
CRLF, NO_FINAL_NEWLINE, BOM = ("WNLI", "dev"), ("CoLA", "dev"), [("MRPC", "train"), ("MRPC", "dev")]


def write_tiny(folder, task):
    rng, seen = random.Random(f"{SEED} {task}"), set()
    labels, columns, test_columns = LAYOUTS[task]
    for split, size in TINY_SIZES.get(task, TINY_SIZES["other"]).items():
        header = test_columns if split[:4] in ("test", "diag") else MNLI_DEV if split[:4] == "dev_" else columns
        wanted = [labels[number % len(labels)] for number in range(size)]
        rng.shuffle(wanted)
        rows = []
        for index, label in enumerate(wanted):
            text = texts(rng, task, label)
            while tuple(text) in seen:
                text = texts(rng, task, label)
            seen.add(tuple(text))
            values = row(rng, task, split, index, label, text)
            if (task, split, index) in QUIRKS:
                name, change = QUIRKS[task, split, index]
                values[name] = change(values[name])
            rows.append([values[name] for name in header.split("|")])
        if (task, split) == ("QQP", "train"):
            rows[17] = rows[17][:3]   # the official train file, too, has rows that stop early: readers skip them
        write(folder / task / f"{split}.tsv", [] if header.startswith("source") else [header.replace("|", "\t")], rows,
              bom=(task, split) in BOM, newline="\r\n" if (task, split) == CRLF else "\n",
              final_newline=(task, split) != NO_FINAL_NEWLINE)


def write(path, header, rows, *, bom=False, newline="\n", final_newline=True):
    lines = header + ["\t".join(fields) for fields in rows]
    content = newline.join(lines) + (newline if final_newline else "")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("utf-8-sig" if bom else "utf-8"))   # bytes: no newline translation on Windows


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "sample"
    write_sst(folder)
    for task in LAYOUTS:
        write_tiny(folder, task)


if __name__ == "__main__":
    main()
