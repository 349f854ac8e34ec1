import pytest

from pfl_fast.data.sources.ag_news import tokenize

TRAIN = '"3","Oil up","Oil, oil and gas."\n"1","War","Peace; war"\n'
TEST = '"4","Oil","Unheard of"\n'


def write(folder, train=TRAIN, test=TEST):
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_text(train, encoding="utf-8")
    (folder / "test.csv").write_text(test, encoding="utf-8")


@pytest.mark.parametrize("place", ["agnews", "ag_news_csv"])
def test_original_columns(raw, load_real, place):
    write(raw / place)
    data = load_real("agnews", size=8)
    # by frequency, then alphabet: oil 3, war 2, then "," "." and gas peace up
    number = {word: i for i, word in enumerate(["oil", "war", ",", ".", "and", "gas", "peace", "up"], 3)}
    assert data.x.dtype == "int32"
    assert data.x[0].tolist() == [1] + [number[w] for w in ["oil", "up", "oil", ",", "oil", "and", "gas"]]
    assert data.x[1].tolist() == [1, number["war"], number["peace"], number["war"], 0, 0, 0, 0]
    assert data.x[2].tolist() == [1, number["oil"], 2, 2, 0, 0, 0, 0]
    assert data.y.tolist() == [2, 0, 3]
    assert data.test.tolist() == [False, False, True]
    assert data.vocabulary == 11
    assert data.modality == "text"


@pytest.mark.parametrize("size", [1, 13, 200])
def test_length(raw, load_real, size):
    write(raw)
    data = load_real("agnews", size=size)
    assert data.x.shape == (3, size)
    assert (data.x[:, 0] == 1).all()


def test_columns_with_a_header(raw, load_real):
    header = "label,label_name,text\n"
    write(raw, header + '2,Business,"Oil, up"\n', header + "0,World,war\n")
    data = load_real("agnews")
    assert data.y.tolist() == [2, 0]
    assert data.classes[2] == "Business"
    assert data.x[0, :5].tolist() == [1, 4, 3, 5, 0]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("", r"train\.csv: empty"),
        ("label,label_name,text\n", r"train\.csv: empty"),
        ("1,only two\n", r"train\.csv, line 1: 2 columns"),
        ("1,a,b\nx,a,b\n", r"train\.csv, line 2: invalid literal"),
        ("5,a,b\n", "1 labels outside 0 to 3"),
        ("0,a,b\n", "1 labels outside 0 to 3"),
    ],
)
def test_broken_files(raw, refuses, train, message):
    write(raw, train)
    refuses("agnews", message)


def test_not_text(raw, refuses):
    write(raw)
    (raw / "train.csv").write_bytes(b"\xff\xfe\x00garbage")
    refuses("agnews", r"train\.csv, line")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("A<br />b", ["a", "b"]),
        ('He said: "No!"', ["he", "said", "no", "!"]),
        ("it's 3.5 (or so), no?", ["it", "'", "s", "3", ".", "5", "(", "or", "so", ")", ",", "no", "?"]),
        (" #36;10\tmillion\n", ["#36", "10", "million"]),
    ],
)
def test_tokenizer(text, tokens):
    assert tokenize(text) == tokens
