"""Trains three small tokenizers and saves each as a folder that `from_pretrained` reads.

Run by hand from the root of the repository; the tests read the folders.
Made with Python 3.11.7, transformers 5.23.0, tokenizers 0.23.3, sentencepiece 0.2.3.

    wordpiece/  WordPiece with BERT's normalizer and template: [CLS] A [SEP], [CLS] A [SEP] B [SEP]
    bytebpe/    byte-level BPE like GPT-2's: adds no tokens; the end token is also the padding token
    unigram/    SentencePiece unigram like T5's: A </s>, with <extra_id_0> to <extra_id_3>
"""

import json
import tempfile
from pathlib import Path

import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent

TEXT = """\
The river rises in the hills north of the village and runs slowly through the fields.
In the spring it carries the melted snow, and in the summer children swim in it.
An old mill stands at the bridge; its wheel has not turned for thirty years.
Maria Lindberg bought the mill in March and wants to bake bread there again.
She wrote to the council in Oslo, to the bank, and to a carpenter from Gdansk.
The carpenter answered first: the roof is sound, the floor is not, the wheel is lost.
Can a wheel be built without a drawing? He thinks that it can, and asks for two weeks.
On Monday the council said no. On Tuesday it said perhaps, and on Friday it said yes.
The bank lends 12,500 crowns at 4.75 percent, which is less than she had hoped for.
Bread needs flour, water, salt and time, and nothing of it can be hurried.
Her brother doesn't believe in the plan; he's a teacher and believes in timetables.
"You'll be back in Bergen before Christmas," he said, and she laughed and went on.
The new wheel turned for the first time on the third of November, in heavy rain.
People came from Stockholm, from New York and from the other side of the river.
Wer frisches Brot will, muss früh aufstehen; die Mühle öffnet um sechs Uhr.
Le pain est cuit dans un four à bois, et la croûte est très foncée.
El molino es pequeño, pero el río nunca se detiene.
A token is not a word, and a word is not a thought, but counting needs a unit.
The unbelievable unhappiness of misunderstandings: rereading, rewriting, unlearning.
The reader reads, the writer writes, the baker bakes, the miller mills, the river runs.
"""


def save(name, tokenizer, **settings):
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, clean_up_tokenization_spaces=False, **settings
    )
    fast.save_pretrained(HERE / name)
    for path in sorted((HERE / name).iterdir()):
        if path.suffix == ".json":
            content = json.loads(path.read_text())
            path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
        print(path.relative_to(HERE), path.stat().st_size)


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=320, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    tokenizer.decoder = decoders.WordPiece()
    save(
        "wordpiece",
        tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def bytebpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<mask>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    save(
        "bytebpe",
        tokenizer,
        unk_token="<|endoftext|>",
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
    )


def unigram():
    with tempfile.TemporaryDirectory() as folder:
        text, prefix = Path(folder, "text"), Path(folder, "unigram")
        text.write_text(TEXT)
        sentencepiece.SentencePieceTrainer.train(
            input=str(text),
            model_prefix=str(prefix),
            vocab_size=230,
            model_type="unigram",
            character_coverage=1.0,
            normalization_rule_name="identity",
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            pad_piece="<pad>",
            num_threads=1,
            minloglevel=2,
        )
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(prefix.with_suffix(".model")))
    vocab = [(pieces.id_to_piece(id), round(pieces.get_score(id), 4)) for id in range(len(pieces))]
    extra = [f"<extra_id_{n}>" for n in range(4)]
    vocab += [(token, 0.0) for token in reversed(extra)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=2, byte_fallback=False))
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", *extra])
    # T5's own normalizer is a map of 240 KB; this one has the part that the tests need.
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A:0 </s>:0", pair="$A:0 </s>:0 $B:0 </s>:0", special_tokens=[("</s>", 1)]
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    save(
        "unigram",
        tokenizer,
        unk_token="<unk>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens=extra,
        model_input_names=["input_ids", "attention_mask"],
    )


if __name__ == "__main__":
    wordpiece()
    bytebpe()
    unigram()
