//! `firebrick init` as users run it: what it writes is checked, and trains as it is.

use std::fs;
use std::io::Write;
use std::path::Path;

use assert_cmd::assert::Assert;
use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

use crate::small_run::{at_root, firebrick};

/// Runs `firebrick init` in a folder.
fn init(folder: &Path, arguments: &[&str]) -> Assert {
    let mut command = firebrick(folder);
    command.arg("init").args(arguments);
    command.assert()
}

/// Drafts a run file in this folder, trains it for two steps, and returns its text and what was said about the data.
fn trained(folder: &Path, arguments: &[&str]) -> (String, String) {
    let drafted = init(folder, arguments).success();
    let output = drafted.get_output();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    let place = TempDir::new().unwrap();
    let [run, out] = ["run.ron", "out"].map(|name| place.path().join(name));
    fs::write(&run, &text).unwrap();
    let mut train = firebrick(folder);
    train.arg("train").arg(&run).arg("--output").arg(&out).args(["--steps", "2", "--batch", "4"]);
    train.assert().success().stdout(contains("valid loss"));
    (text, said)
}

#[test]
fn each_task_gets_a_run_that_trains_on_its_data() {
    let root = Path::new("..");
    for (task, data, written, known) in [
        ("TokenClassification", "entities.conll", "task: TokenClassification(),", "labels: B-LOC"),
        ("SequenceClassification", "topics.tsv", "best_by: \"accuracy\"", "labels: "),
        ("Seq2Seq", "numbers.tsv", "source: \"words\", target: \"digits\"", "writes `digits` from `words`"),
        ("MaskedLm", "topics.tsv", "mask: \"<mask>\"", "the texts are in `text`"),
        ("CausalLm", "chat.jsonl", "chat: (template: ChatMl)", "conversations in `messages`"),
    ] {
        let (text, said) = trained(root, &[task, "--data", &format!("examples/data/{data}")]);
        assert!(text.contains(written), "{task}: {text}");
        assert!(said.contains(known) && said.contains("validation data: examples/data/"), "{task}: {said}");
        assert!(
            text.contains(&format!("valid: \"examples/data/{}", data.split('.').next().unwrap())),
            "{text}"
        );
    }
}

/// A step of a larger model takes longer than a draft should, and more memory than there may be.
#[test]
fn a_large_model_is_not_tried_and_that_is_said() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    let golden = Path::new("tests/golden/measures/model");
    fs::copy(golden.join("tokenizer.json"), model.join("tokenizer.json")).unwrap();
    let write = |rows: u64| {
        let config = fs::read_to_string(golden.join("config.json")).unwrap();
        let config = config.replace("\"vocab_size\": 300", &format!("\"vocab_size\": {rows}"));
        fs::write(model.join("config.json"), config).unwrap();
        // The last tensor is the table of tokens, whose further rows are a hole in the file.
        let bytes = fs::read(golden.join("model.safetensors")).unwrap();
        let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = std::str::from_utf8(&bytes[8..8 + size]).unwrap().trim_end();
        let end = 28416 + rows * 16 * 4;
        let header =
            header.replace("[300,16]", &format!("[{rows},16]")).replace("47616]", &format!("{end}]"));
        assert!(header.contains(&format!("[{rows},16]")), "{header}");
        let mut file = fs::File::create(model.join("model.safetensors")).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.write_all(&bytes[8 + size..]).unwrap();
        file.set_len(8 + header.len() as u64 + end).unwrap();
    };
    fs::write(folder.path().join("data.jsonl"), "{\"text\": \"the dog plays\"}\n".repeat(20)).unwrap();
    let arguments = ["CausalLm", "--data", "data.jsonl", "--model", "model"];
    let said =
        "the model has 21 million parameters, so that no step was tried: `firebrick train run.ron --steps 1`";
    write(1_300_000);
    init(folder.path(), &arguments).success().stdout(contains("Pretrained")).stderr(contains(said));
    // A small one is tried.
    write(300);
    init(folder.path(), &arguments).success().stderr(contains("no step was tried").not());
}

#[test]
fn data_is_recognised_by_what_is_in_it() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("one.txt", &"to be or not to be, that is the question\n".repeat(50));
    let (text, _) = trained(folder.path(), &["CausalLm", "--data", "one.txt"]);
    assert!(text.contains("block: 16") && !text.contains("format:"), "{text}");

    write("pairs.en", &"Two young guys.\n".repeat(12));
    write("pairs.fr", &"Deux jeunes hommes.\n".repeat(12));
    let (text, _) = trained(folder.path(), &["Seq2Seq", "--data", "pairs"]);
    assert!(text.contains("format: Parallel(source: \"en\", target: \"fr\")"), "{text}");

    // Columns under usual names, in another order, and a format that the file's name does not tell.
    let rows = "5;a film that is good\n1;a film that is bad\n".repeat(6);
    write("reviews.data", &format!("votes;review\n{rows}"));
    let (text, said) = trained(folder.path(), &["SequenceClassification", "--data", "reviews.data"]);
    assert!(text.contains("format: Csv(delimiter: ';')"), "{text}");
    assert!(text.contains("text: \"review\", label: \"votes\""), "{text} {said}");

    write("words.tsv", &"Maria\tB-PER\nbakes\tO\n\nPeter\tB-PER\nsings\tO\n\n".repeat(8));
    let (text, said) = trained(folder.path(), &["TokenClassification", "--data", "words.tsv"]);
    assert!(text.contains("format: Conll()") && said.contains("2 labels: B-PER, O"), "{text} {said}");

    // Validation data whose name does not tell its format.
    write("good.csv", &"text,label\na good film,good\na bad film,bad\n".repeat(10));
    write("good.held", "text,label\na good film,good\na bad film,bad\n");
    let valid = ["SequenceClassification", "--data", "good.csv", "--valid", "good.held"];
    let (text, _) = trained(folder.path(), &valid);
    assert!(text.contains("format: Csv()") && text.contains("valid: \"good.held\""), "{text}");

    write(
        "scores.jsonl",
        &"{\"sentence\": \"good\", \"score\": 0.5}\n{\"sentence\": \"bad\", \"score\": 1.25}\n".repeat(9),
    );
    let (text, _) = trained(folder.path(), &["SequenceClassification", "--data", "scores.jsonl"]);
    assert!(text.contains("kind: Number"), "{text}");

    // A table without types holds numbers as text.
    let rows: String = (0..30).map(|row| format!("{row},the text {row},{}.5\n", row * 7)).collect();
    write("prices.csv", &format!("id,text,price\n{rows}"));
    let (text, _) = trained(folder.path(), &["SequenceClassification", "--data", "prices.csv"]);
    assert!(text.contains("label: \"price\", kind: Number"), "{text}");

    let rows = "{\"text\": \"wind and rain\", \"labels\": [\"wind\", \"rain\"]}\n{\"text\": \"sun\", \"labels\": []}\n";
    write("tags.jsonl", &rows.repeat(12));
    let (text, said) = trained(folder.path(), &["SequenceClassification", "--data", "tags.jsonl"]);
    assert!(text.contains("kind: Classes") && text.contains("best_by: \"f1\""), "{text}");
    assert!(said.contains("2 labels: rain, wind"), "{said}");
}

/// A folder is trained further with its own tokenizer; a classifier of other labels gets a new head.
#[test]
fn a_models_folder_is_recognised() {
    let place = TempDir::new().unwrap();
    let out = place.path().join("out");
    let mut train = at_root();
    train.args(["train", "examples/sequence_classification.ron", "--steps", "1", "--output"]).arg(&out);
    train.assert().success();
    let model = out.join("pretrained");
    let model = model.to_str().unwrap();
    let same = ["SequenceClassification", "--data", "examples/data/topics.tsv", "--model", model];
    let (text, said) = trained(Path::new(".."), &same);
    assert!(text.contains(&format!("Pretrained({model:?})")) && text.contains("tokenizer: File("), "{text}");
    assert!(!text.contains("new_head") && said.contains("a model of the family bert"), "{text} {said}");

    let other = place.path().join("other.csv");
    fs::write(&other, "text,label\na good film,good\na bad film,bad\n".repeat(10)).unwrap();
    let other = ["SequenceClassification", "--data", other.to_str().unwrap(), "--model", model];
    let (text, said) = trained(Path::new(".."), &other);
    assert!(text.contains("new_head: true") && said.contains("a new one is trained"), "{text} {said}");

    let wrong = ["CausalLm", "--data", "examples/data/chat.jsonl", "--model", model];
    init(Path::new(".."), &wrong).code(1).stderr(contains("expected one that learns `CausalLm`"));
}

#[test]
fn what_does_not_fit_is_refused_and_says_what_does() {
    let root = Path::new("..");
    let tasks = "expected one of CausalLm, MaskedLm, TokenClassification, SequenceClassification, Seq2Seq";
    init(root, &["Sequence"]).code(1).stderr(contains(tasks)).stdout("");
    init(root, &["causallm"]).code(1).stderr(contains("did you mean `CausalLm`?"));
    let texts = ["TokenClassification", "--data", "examples/data/topics.tsv"];
    init(root, &texts).code(1).stderr(contains("a list of words and a list of their labels"));
    let unlabelled = ["SequenceClassification", "--data", "examples/data/chat.jsonl"];
    init(root, &unlabelled).code(1).stderr(contains("needs a label").and(contains("the fields messages")));
    let chat = ["Seq2Seq", "--data", "examples/data/chat.jsonl"];
    init(root, &chat).code(1).stderr(contains("two texts: a source and a target"));
    init(root, &["CausalLm", "--data", "no/such.txt"]).code(1).stderr(contains("no/such.txt"));
    for task in ["MaskedLm", "CausalLm"] {
        let labelled = init(root, &[task, "--data", "examples/data/entities.conll"]);
        labelled
            .code(1)
            .stdout("")
            .stderr(contains("needs a text").and(contains("the fields words, labels")));
    }
    let place = TempDir::new().unwrap();
    let unanswered = "{\"messages\": [{\"role\": \"user\", \"content\": \"Why?\"}]}\n".repeat(12);
    fs::write(place.path().join("asked.jsonl"), unanswered).unwrap();
    let unanswered = init(place.path(), &["CausalLm", "--data", "asked.jsonl"]).code(1).stdout("");
    unanswered.stderr(contains("a message of the role `assistant`"));
    let missing = ["MaskedLm", "--data", "examples/data/topics.tsv", "--valid", "nope"];
    init(root, &missing).code(1).stdout("").stderr(contains("`nope`: No such file"));
    for path in ["no/such.folder", "nope"] {
        let missing = init(root, &["CausalLm", "--data", path]).code(1).stdout("");
        missing.stderr(contains(format!("`{path}`: No such file")));
    }
    // Without data, there is a placeholder.
    let placeholder = init(root, &["CausalLm"]).success().stderr(contains("placeholder"));
    placeholder.stdout(contains("fill in: your data").and(contains("model: Gpt(")));
}

#[test]
fn data_without_records_is_refused_for_every_task() {
    let folder = TempDir::new().unwrap();
    let files = [
        ("empty.jsonl", ""),
        ("blank.jsonl", "\n\n"),
        ("header.csv", "text,label\n"),
        ("empty.conll", ""),
        ("empty.txt", ""),
        ("blank.text", "\n \n"),
    ];
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
        for task in
            ["CausalLm", "MaskedLm", "TokenClassification", "SequenceClassification", "Seq2Seq", "Dpo"]
        {
            let refused = init(folder.path(), &[task, "--data", name]).code(1).stdout("");
            refused.stderr(contains(format!("{name} has no records")));
        }
    }
    // A model cannot be evaluated on empty validation data.
    fs::write(folder.path().join("train.jsonl"), "{\"text\": \"to be\"}\n").unwrap();
    let valid = ["CausalLm", "--data", "train.jsonl", "--valid", "empty.jsonl"];
    init(folder.path(), &valid).code(1).stderr(contains("empty.jsonl has no records"));
}

#[cfg(not(feature = "hub"))]
#[test]
fn a_program_without_the_hub_says_how_to_do_without() {
    let root = Path::new("..");
    let model = ["CausalLm", "--data", "examples/data/chat.jsonl", "--model", "hub:org/name"];
    let data = ["CausalLm", "--data", "hub:org/name/train.jsonl"];
    for arguments in [&model[..], &data] {
        init(root, arguments).code(1).stdout("").stderr(contains("build it with `--features hub`"));
    }
}

/// Labels of words in every scheme and format, and short conversations: what is suggested trains.
#[test]
fn a_suggestion_is_one_that_trains() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let bioes = "Ana S-PER\nsaw O\nKim B-PER\nLee E-PER\n\n";
    let iob1 = "Ana I-PER\nsaw O\nKim I-PER\nLee I-PER\n\n";
    let parts = "Ana NNP\nsaw VBD\nKim NNP\n\n";
    let columns = |text: &str| text.replace(' ', "\t").repeat(20);
    write("bioes.conll", &bioes.repeat(20));
    write("iob1.conll", &iob1.repeat(20));
    write("parts.conll", &parts.repeat(20));
    write("bioes.tsv", &columns(bioes));
    write("bioes.data", &bioes.repeat(20));
    let listed = |labels: &str| {
        format!("{{\"tokens\": [\"Ana\", \"saw\", \"Kim\"], \"tags\": [{labels}]}}\n").repeat(20)
    };
    write("bioes.jsonl", &listed("\"S-PER\", \"O\", \"S-PER\""));
    write("iob1.jsonl", &listed("\"I-PER\", \"O\", \"I-PER\""));
    write("ids.jsonl", &listed("1, 0, 1"));
    write("iob2.jsonl", &listed("\"B-PER\", \"O\", \"B-PER\""));
    for (file, format, best) in [
        ("bioes.conll", "format: Conll(tags: Detect)", "best_by: \"f1\""),
        ("iob1.conll", "format: Conll(tags: Detect)", "best_by: \"f1\""),
        ("bioes.tsv", "format: Conll(tags: Detect)", "best_by: \"f1\""),
        ("bioes.data", "format: Conll(tags: Detect)", "best_by: \"f1\""),
        ("parts.conll", "path: \"parts.conll\"", "best_by: \"accuracy\""),
        ("bioes.jsonl", "labels: \"tags\"", "best_by: \"accuracy\""),
        ("iob1.jsonl", "labels: \"tags\"", "best_by: \"accuracy\""),
        ("ids.jsonl", "labels: \"tags\"", "best_by: \"accuracy\""),
        ("iob2.jsonl", "labels: \"tags\"", "best_by: \"f1\""),
    ] {
        let (text, said) = trained(folder.path(), &["TokenClassification", "--data", file]);
        assert!(text.contains(format) && text.contains(best), "{file}: {text}");
        let is_said = said.contains("the F1 of entities is that of IOB2");
        assert_eq!(is_said, ["bioes.jsonl", "iob1.jsonl"].contains(&file), "{file}: {said}");
    }

    // The template's own tokens are most of a short conversation.
    let turns = |answer: &str| {
        format!(
            "[{{\"role\": \"user\", \"content\": \"a?\"}}, {{\"role\": \"assistant\", \"content\": \"{answer}\"}}]"
        )
    };
    write("chat.jsonl", &format!("{{\"messages\": {}}}\n", turns("b")).repeat(40));
    write("alpaca.jsonl", &"{\"instruction\": \"a?\", \"input\": \"\", \"output\": \"b\"}\n".repeat(40));
    write("pairs.jsonl", &"{\"prompt\": \"a?\", \"completion\": \"b\"}\n".repeat(40));
    for file in ["chat.jsonl", "alpaca.jsonl", "pairs.jsonl"] {
        trained(folder.path(), &["CausalLm", "--data", file]);
    }
    let preferred = format!("{{\"chosen\": {}, \"rejected\": {}}}\n", turns("b"), turns("c"));
    write("preferred.jsonl", &preferred.repeat(40));
    trained(folder.path(), &["Dpo", "--data", "preferred.jsonl"]);
}

/// A scheme that scores do not read is said where a run reads its data.
#[test]
fn a_run_says_that_its_entities_are_not_scored() {
    let folder = TempDir::new().unwrap();
    let iob1 = "Ana I-PER\nsaw O\nKim I-PER\nLee I-PER\n\n".repeat(20);
    fs::write(folder.path().join("iob1.conll"), iob1).unwrap();
    let run = "(task: TokenClassification(), data: (path: \"iob1.conll\", valid_fraction: 0.1, \
        tokenizer: Bpe(vocabulary: 270), special: (pad: \"<pad>\", bos: \"<s>\", eos: \"</s>\"), max_length: 32), \
        batch: (micro: 4))";
    fs::write(folder.path().join("run.ron"), run).unwrap();
    let data = |set: &[&str]| {
        let mut data = firebrick(folder.path());
        data.args(["data", "run.ron"]).args(set).assert().success()
    };
    let remedy = "IOB1, and the F1 of entities is that of IOB2: `data.format: Conll(tags: Detect)`";
    data(&[]).stderr(contains(remedy));
    data(&["--set", "data.format=Conll(tags: Detect)"]).stderr(contains(remedy).not());
}

/// Weights that are no numbers show in a step only, for data of any size.
#[test]
fn a_suggestion_is_trained_for_a_step() {
    let place = TempDir::new().unwrap();
    let out = place.path().join("out");
    let mut train = at_root();
    train.args(["train", "examples/sequence_classification.ron", "--steps", "1", "--output"]).arg(&out);
    train.assert().success();
    let weights = out.join("pretrained/model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let mut damaged = whole.clone();
    // The first numbers after the header. The last ones are the classifier's, which starts anew.
    let start = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    damaged[start..start + 16].fill(0xff);

    let write = |name: &str, text: &[u8]| fs::write(place.path().join(name), text).unwrap();
    let rows = "a film that is good,good\na film that is bad,bad\n";
    write("few.csv", format!("text,label\n{}", rows.repeat(10)).as_bytes());
    write("many.csv", format!("text,label\n{}", rows.repeat(30_000)).as_bytes());
    let temporary = place.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let init = |arguments: &[&str]| {
        let mut command = firebrick(place.path());
        command.arg("init").args(arguments).env("TMPDIR", &temporary).assert()
    };
    for data in ["few.csv", "many.csv"] {
        let arguments = ["SequenceClassification", "--data", data, "--model", "out/pretrained"];
        fs::write(&weights, &damaged).unwrap();
        let refused = init(&arguments).code(1).stdout("");
        refused.stderr(contains("a run file that trains on this data cannot be suggested"));
        fs::write(&weights, &whole).unwrap();
        init(&arguments).success().stdout(contains("new_head: true"));
    }
    // Texts of any length, as windows.
    let text = "to be or not to be, that is the question\n".repeat(40_000);
    write("long.txt", text.as_bytes());
    init(&["CausalLm", "--data", "long.txt"]).success().stdout(contains("block:"));
    // Nothing is left.
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}
