//! Small random encoders against a plain forward pass in f64.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use trail_platform::Rng;
use trail_encoder::Encoder;
use trail_probe::predictor::Pooling;

const VOCAB: usize = 11;
const WIDTH: usize = 8;
const LAYERS: usize = 2;
const HEADS: usize = 2;
const MLP: usize = 12;
const POSITIONS: usize = 9;

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Names of a family's tensors: token type, layer, its eight parts.
fn names(family: &str) -> (bool, &'static str, [&'static str; 8]) {
    match family {
        "bert" => (
            true,
            "encoder.layer",
            [
                "attention.self.query",
                "attention.self.key",
                "attention.self.value",
                "attention.output.dense",
                "attention.output.LayerNorm",
                "intermediate.dense",
                "output.dense",
                "output.LayerNorm",
            ],
        ),
        _ => (
            false,
            "transformer.layer",
            [
                "attention.q_lin",
                "attention.k_lin",
                "attention.v_lin",
                "attention.out_lin",
                "sa_layer_norm",
                "ffn.lin1",
                "ffn.lin2",
                "output_layer_norm",
            ],
        ),
    }
}

fn tensors(family: &str) -> Tensors {
    let (has_types, layer, parts) = names(family);
    let mut rng = Rng::new(7);
    let mut all = Tensors::new();
    let mut add = |name: String, shape: &[usize]| {
        let values = (0..shape.iter().product()).map(|_| rng.signed()).collect();
        all.insert(name, (shape.to_vec(), values));
    };
    add("embeddings.word_embeddings.weight".into(), &[VOCAB, WIDTH]);
    add("embeddings.position_embeddings.weight".into(), &[POSITIONS, WIDTH]);
    if has_types {
        add("embeddings.token_type_embeddings.weight".into(), &[2, WIDTH]);
    }
    let mut pair = |name: String, shape: &[usize]| {
        add(format!("{name}.weight"), shape);
        add(format!("{name}.bias"), &shape[..1]);
    };
    pair("embeddings.LayerNorm".into(), &[WIDTH]);
    for at in 0..LAYERS {
        for (part, name) in parts.iter().enumerate() {
            let shape: &[usize] = match part {
                4 | 7 => &[WIDTH],
                5 => &[MLP, WIDTH],
                6 => &[WIDTH, MLP],
                _ => &[WIDTH, WIDTH],
            };
            pair(format!("{layer}.{at}.{name}"), shape);
        }
    }
    all
}

fn config(family: &str) -> String {
    let sizes = match family {
        "bert" => format!(
            "\"hidden_size\": {WIDTH}, \"num_hidden_layers\": {LAYERS}, \"num_attention_heads\": \
             {HEADS}, \"intermediate_size\": {MLP}, \"hidden_act\": \"gelu\", \"layer_norm_eps\": \
             1e-12"
        ),
        _ => format!(
            "\"dim\": {WIDTH}, \"n_layers\": {LAYERS}, \"n_heads\": {HEADS}, \"hidden_dim\": {MLP}, \
             \"activation\": \"gelu\""
        ),
    };
    format!(
        "{{\"model_type\": \"{family}\", \"vocab_size\": {VOCAB}, \"max_position_embeddings\": \
         {POSITIONS}, {sizes}}}"
    )
}

/// A tokenizer of letters: `a` is 3, `b` 4 and so on, between 1 and 2.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": {"direction": "Right", "max_length": 3,
    "strategy": "LongestFirst", "stride": 0}, "padding": {"strategy": {"Fixed": 9}, "direction":
    "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
    "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]",
    "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]",
    "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B",
    "type_id": 0}}], "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
    "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}}, "decoder": null, "model": {"type":
    "WordLevel", "vocab": {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5, "d": 6},
    "unk_token": "[PAD]"}}"#;

fn folder(name: &str, family: &str, prefix: &str, tensors: &Tensors) -> Folder {
    let path = std::env::temp_dir().join(format!("trail-encoder-{}-{name}", std::process::id()));
    fs::create_dir_all(&path).expect("a folder");
    fs::write(path.join("config.json"), config(family)).expect("written");
    fs::write(path.join("tokenizer.json"), TOKENIZER).expect("written");
    let bytes: Vec<(String, &[usize], Vec<u8>)> = tensors
        .iter()
        .map(|(name, (shape, values))| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (format!("{prefix}{name}"), &**shape, bytes)
        })
        .collect();
    let views: HashMap<&str, TensorView<'_>> = bytes
        .iter()
        .map(|(name, shape, bytes)| {
            (&**name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).expect("its shape"))
        })
        .collect();
    let file = safetensors::serialize(views, None).expect("distinct names");
    fs::write(path.join("model.safetensors"), file).expect("written");
    Folder(path)
}

fn open(folder: &Path, pooling: Pooling) -> Encoder {
    Encoder::open(folder, pooling).expect("an encoder")
}

/// The forward pass as the papers write it, one number after another.
struct Plain<'a> {
    family: &'a str,
    tensors: &'a Tensors,
}

impl Plain<'_> {
    fn at(&self, name: &str, at: usize) -> f64 {
        f64::from(self.tensors[name].1[at])
    }

    fn linear(&self, row: &[f64], name: &str) -> Vec<f64> {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let dot = |out: usize| -> f64 {
            let products = row.iter().enumerate();
            products.map(|(i, x)| x * self.at(&weight, out * row.len() + i)).sum::<f64>()
        };
        (0..self.tensors[&bias].1.len()).map(|out| dot(out) + self.at(&bias, out)).collect()
    }

    fn norm(&self, row: &[f64], name: &str) -> Vec<f64> {
        let mean = row.iter().sum::<f64>() / WIDTH as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / WIDTH as f64;
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let each = row.iter().enumerate();
        each.map(|(i, x)| {
            (x - mean) / (variance + 1e-12).sqrt() * self.at(&weight, i) + self.at(&bias, i)
        })
        .collect()
    }

    fn attend(&self, rows: &[Vec<f64>], names: &[String; 3]) -> Vec<Vec<f64>> {
        let of = |name: &String| -> Vec<Vec<f64>> {
            rows.iter().map(|row| self.linear(row, name)).collect()
        };
        let [query, key, value] = names.each_ref().map(of);
        let size = WIDTH / HEADS;
        let mut out = vec![vec![0.0; WIDTH]; rows.len()];
        for (at, out) in out.iter_mut().enumerate() {
            for head in 0..HEADS {
                let part = head * size..(head + 1) * size;
                let score = |other: &Vec<f64>| -> f64 {
                    let both = query[at][part.clone()].iter().zip(&other[part.clone()]);
                    (both.map(|(a, b)| a * b).sum::<f64>() / (size as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = key.iter().map(score).collect();
                let sum: f64 = scores.iter().sum();
                for (score, value) in scores.iter().zip(&value) {
                    part.clone().for_each(|i| out[i] += score / sum * value[i]);
                }
            }
        }
        out
    }

    fn rows(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let (has_types, layer, parts) = names(self.family);
        let embed = |(position, &id): (usize, &u32)| -> Vec<f64> {
            let sum = |i: usize| {
                let word = self.at("embeddings.word_embeddings.weight", id as usize * WIDTH + i);
                let place = self.at("embeddings.position_embeddings.weight", position * WIDTH + i);
                let kind = "embeddings.token_type_embeddings.weight";
                word + place + if has_types { self.at(kind, i) } else { 0.0 }
            };
            self.norm(&(0..WIDTH).map(sum).collect::<Vec<_>>(), "embeddings.LayerNorm")
        };
        let mut rows: Vec<Vec<f64>> = ids.iter().enumerate().map(embed).collect();
        for at in 0..LAYERS {
            let name = |part: usize| format!("{layer}.{at}.{}", parts[part]);
            let attended = self.attend(&rows, &[name(0), name(1), name(2)]);
            for (row, attended) in rows.iter_mut().zip(attended) {
                let add = |a: &[f64], b: Vec<f64>| -> Vec<f64> {
                    a.iter().zip(b).map(|(a, b)| a + b).collect()
                };
                let first = self.norm(&add(row, self.linear(&attended, &name(3))), &name(4));
                let hidden: Vec<f64> =
                    self.linear(&first, &name(5)).into_iter().map(gelu).collect();
                *row = self.norm(&add(&first, self.linear(&hidden, &name(6))), &name(7));
            }
        }
        rows
    }
}

/// x times the normal distribution's integral up to x, by Simpson's rule from 0.
fn gelu(x: f64) -> f64 {
    let width = x / 400.0;
    let at = |i: u32| (-0.5 * (f64::from(i) * width).powi(2)).exp();
    let inner: f64 = (1..400).map(|i| at(i) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    let integral = (at(0) + inner + at(400)) * width / 3.0 / (2.0 * std::f64::consts::PI).sqrt();
    x * (0.5 + integral)
}

#[test]
fn both_families_are_the_plain_forward_pass() {
    for (family, prefix) in [("bert", ""), ("bert", "bert."), ("distilbert", "distilbert.")] {
        let tensors = tensors(family);
        let of = folder(&format!("plain-{family}-{}", prefix.len()), family, prefix, &tensors);
        let ids = [1, 5, 3, 3, 10, 2];
        let want = Plain { family, tensors: &tensors }.rows(&ids);
        let mean = |i: usize| want.iter().map(|row| row[i]).sum::<f64>() / ids.len() as f64;
        for (pooling, want) in [
            (Pooling::Cls, want[0].clone()),
            (Pooling::Mean, (0..WIDTH).map(mean).collect::<Vec<_>>()),
        ] {
            let embedding = open(&of.0, pooling).embed_ids(&ids).expect("an embedding");
            for (have, want) in embedding.iter().zip(&want) {
                // f32 sums of 12 products of the order of 1, through two layers.
                assert!((f64::from(*have) - want).abs() < 2e-5, "{family}: {have} {want}");
            }
        }
    }
}

#[test]
fn the_first_checkpoints_names_are_read() {
    let tensors = tensors("bert");
    let old = tensors.iter().map(|(name, values)| {
        let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
        (name.replace("LayerNorm.bias", "LayerNorm.beta"), values.clone())
    });
    let old: Tensors = old.collect();
    let (new, old) = (folder("new", "bert", "", &tensors), folder("old", "bert", "", &old));
    let embed = |of: &Folder| open(&of.0, Pooling::Mean).embed("a b c").expect("an embedding");
    assert_eq!(embed(&new), embed(&old));
}

#[test]
fn a_text_is_cut_at_the_encoders_own_length_and_not_padded() {
    let tensors = tensors("bert");
    let of = folder("cut", "bert", "", &tensors);
    let encoder = open(&of.0, Pooling::Mean);
    let ids = |ids: &[u32]| encoder.embed_ids(ids).expect("an embedding");
    let text = |text: &str| encoder.embed(text).expect("an embedding");
    assert_eq!(text("a b d"), ids(&[1, 3, 4, 6, 2]));
    assert_eq!(text(&"a ".repeat(50)), ids(&[1, 3, 3, 3, 3, 3, 3, 3, 2]));
    fs::write(of.0.join("sentence_bert_config.json"), r#"{"max_seq_length": 8}"#).expect("written");
    let shorter = open(&of.0, Pooling::Mean).embed(&"a ".repeat(50)).expect("an embedding");
    assert_eq!(shorter, ids(&[1, 3, 3, 3, 3, 3, 3, 2]));
}

#[test]
fn what_is_no_encoder_is_refused_in_one_line() {
    let refused = |folder: &Path, why: &str| {
        let error = Encoder::open(folder, Pooling::Mean).err().expect("refused").to_string();
        assert!(error.contains(why) && error.lines().count() == 1, "{error}");
    };
    refused(Path::new("nowhere"), "config.json");
    let mut all = tensors("bert");
    refused(&folder("family", "roberta", "", &all).0, "roberta");
    all.get_mut("encoder.layer.1.output.dense.bias").expect("there").1[0] = f32::NAN;
    refused(&folder("nan", "bert", "", &all).0, "encoder.layer.1.output.dense.bias");
    all.remove("encoder.layer.0.attention.self.key.bias");
    refused(&folder("missing", "bert", "", &all).0, "encoder.layer.0.attention.self.key.bias");
    let of = folder("damaged", "bert", "", &tensors("bert"));
    let encoder = open(&of.0, Pooling::Cls);
    assert!(encoder.embed_ids(&[]).is_err() && encoder.embed_ids(&[1; POSITIONS + 1]).is_err());
    assert!(encoder.embed_ids(&[VOCAB as u32]).is_err());
    fs::write(of.0.join("tokenizer.json"), "{").expect("written");
    refused(&of.0, "tokenizer.json");
    let bytes = fs::read(of.0.join("model.safetensors")).expect("read");
    fs::write(of.0.join("model.safetensors"), &bytes[..bytes.len() / 2]).expect("written");
    refused(&of.0, "model.safetensors");
}
