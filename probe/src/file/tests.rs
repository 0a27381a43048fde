//! The loader on valid files, on wrong ones, and on broken bytes.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use trail_platform::Rng;

use super::*;
use crate::packed::HeadDtype;

fn weights() -> Weights {
    Weights::random(5, 3, 2, 1)
}

fn probe() -> Probe {
    let mut probe = Probe::new(
        weights(),
        Bins::from_edges(&[0.0, 4.7, 100.0]).unwrap(),
        TapLayers::new(&[4, 11]).unwrap(),
    );
    probe.model = Some("a model's \"name\"\n".into());
    probe.record = [("seed", "31"), ("mae", "19.38")].map(|(k, v)| (k.into(), v.into())).into();
    probe
}

fn error(bytes: &[u8]) -> String {
    Probe::from_bytes(bytes, "f").err().expect("an error").to_string()
}

type Tensors<'a> = [(&'a str, &'a [usize], &'a [f32])];

/// The tensors of a probe of 5 inputs, 3 units and 2 bins.
const WHOLE: [(&str, &[usize], &[f32]); 4] = [
    ("hidden.weight", &[3, 5], &[0.5; 15]),
    ("hidden.bias", &[3], &[0.5; 3]),
    ("output.weight", &[2, 3], &[0.5; 6]),
    ("output.bias", &[2], &[0.5; 2]),
];

/// Metadata of a file of version 1 that fits [`WHOLE`].
const FIRST: [(&str, &str); 6] = [
    ("format", "trail-probe"),
    ("version", "1"),
    ("layer", "1"),
    ("hidden_size", "5"),
    ("max_tokens", "100"),
    ("bins", "2"),
];

/// A file of `tensors` and the metadata `keys`, with some `changed` or added.
fn file_with(tensors: &Tensors, keys: &[(&str, &str)], changed: &[(&str, &str)]) -> Vec<u8> {
    let keys = keys.iter().chain(changed);
    let metadata = keys.map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let data: Vec<Vec<u8>> = tensors.iter().map(|(_, _, values)| bytes(values)).collect();
    let views = tensors.iter().zip(&data).map(|((name, shape, _), data)| {
        (*name, TensorView::new(Dtype::F32, shape.to_vec(), data).expect("a tensor"))
    });
    safetensors::serialize(views, Some(metadata)).expect("a file")
}

/// Asserts that all of a file's contents are equal.
fn assert_same(a: &Probe, b: &Probe) {
    assert_eq!((a.layers, a.bins, &a.weights), (b.layers, b.bins, &b.weights));
    assert_eq!((&a.model, &a.record), (&b.model, &b.record));
}

#[test]
fn survives_the_file() {
    let path = std::env::temp_dir().join(format!("trail-probe-{}", std::process::id()));
    std::fs::write(&path, probe().to_bytes(Storage::F32)).unwrap();
    let read = Probe::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_same(&read, &probe());
    assert_eq!((read.head.d(), read.head.bins()), (5, 2));
    for bins in [Bins::equal(7, 1000), Bins::log(7, 1000), Bins::equal(7, 7)] {
        let plain = Probe::new(Weights::random(4, 2, 7, 3), bins, TapLayers::one(0));
        assert_same(&Probe::from_bytes(&plain.to_bytes(Storage::F32), "f").unwrap(), &plain);
    }
}

#[test]
fn keys_of_the_format_are_not_overwritten_by_the_record() {
    let mut probe = probe();
    for key in ["format", "version", "edges", "bins", "max_tokens", "layer", "hidden_size", "model"]
    {
        probe.record.insert(key.into(), "wrong".into());
    }
    assert_same(&Probe::from_bytes(&probe.to_bytes(Storage::F32), "f").unwrap(), &self::probe());
}

#[test]
fn bf16_weights_are_those_of_the_head() {
    let [exact, narrow] = [Storage::F32, Storage::Bf16]
        .map(|storage| Probe::from_bytes(&probe().to_bytes(storage), "f").unwrap());
    assert_eq!(*narrow.weights, HeadDtype::Bf16.round(&exact.weights));
    let probabilities = |probe: &Probe| {
        let mut out = [0.0; 2];
        let partials = crate::Partials::new(&probe.head, 1);
        let rows = crate::Rows::of(&[0.3, -1.0, 0.7, 2.0, 0.1]);
        probe.head.forward(rows, 1, &partials, &mut out);
        out
    };
    assert_eq!(probabilities(&narrow), probabilities(&exact));
}

#[test]
fn the_inputs_beside_the_activation_survive_the_file() {
    for (inputs, kind) in Inputs::ALL.into_iter().zip([HeadKind::ALL, HeadKind::ALL].concat()) {
        let weights = Weights { kind, ..weights().with_random(inputs, 2) };
        let probe = Probe::new(weights, probe().bins, probe().layers);
        let bytes = probe.to_bytes(Storage::F32);
        let read = Probe::from_bytes(&bytes, "f").unwrap();
        assert_same(&read, &probe);
        assert_eq!((read.weights.inputs(), read.head.inputs()), (inputs, inputs));
        // A reader of version 2 alone would take the wrong function for the whole.
        let version = if inputs == Inputs::default() { "\"2\"" } else { "\"3\"" };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(text.contains(&format!("\"version\":{version}")), "{inputs}");
    }
    let prompt = ("prompt.mean.weight", &[3_usize, 5][..], &[0.5_f32; 15][..]);
    let of = |more: &Tensors| error(&file_with(&[&WHOLE, more].concat(), &FIRST, &[]));
    assert_eq!(
        of(&[prompt]),
        "f: prompt.length.weight: expected a tensor of this name, found none"
    );
    assert_eq!(
        of(&[("age.bias", &[3], &[0.5; 3])]),
        "f: age.bias: expected F32 or BF16 [5, 3], found F32 [3]"
    );
}

#[test]
fn the_first_version_is_read() {
    let read = Probe::from_bytes(&file_with(&WHOLE, &FIRST, &[("seed", "31")]), "f").unwrap();
    assert_eq!(
        (read.layers, read.bins, &read.model),
        (TapLayers::one(1), Bins::equal(2, 100), &None)
    );
    assert_eq!(read.record, [("seed".to_string(), "31".to_string())].into());
    let bundled = include_bytes!("../../../assets/demo/probe.safetensors");
    let read = Probe::from_bytes(bundled, "f").unwrap();
    assert_eq!((read.layers, read.bins), (TapLayers::one(3), Bins::default()));
    assert_eq!(read.record["mae_refined"], "19.38");
}

#[test]
fn the_filter_is_that_of_the_file_or_follows_from_the_fit() {
    let of = |kind: Option<FilterKind>, fit: Option<Fit>| {
        let probe = Probe { filter_kind: kind, fit, ..probe() };
        Probe::from_bytes(&probe.to_bytes(Storage::F32), "f").unwrap().filter_kind()
    };
    let states = Lengths::new(probe().bins.max_tokens()).len();
    let lengths = vec![1.0 / states as f32; states];
    let fit = Some(Fit { lengths, temperature: [1.0; AGES], evidence: [0.5; AGES] });
    assert_eq!(of(None, None), FilterKind::Bins);
    assert_eq!(of(Some(FilterKind::Tokens), None), FilterKind::Bins, "nothing to start from");
    assert_eq!(of(None, fit.clone()), FilterKind::Tokens);
    for kind in FilterKind::ALL {
        assert_eq!(of(Some(kind), fit.clone()), kind);
    }
    let unknown = error(&file_with(&WHOLE, &FIRST, &[("filter", "kalman")]));
    assert!(unknown.contains("filter") && unknown.contains("kalman"), "{unknown}");
    let older = Probe::from_bytes(&file_with(&WHOLE, &FIRST, &[]), "f").unwrap();
    assert_eq!((older.filter_kind, older.filter_kind()), (None, FilterKind::Bins));
}

#[test]
fn the_options_of_the_rank_survive_the_file_and_are_checked() {
    let share = Some(0.25);
    for options in [
        RankOptions::default(),
        RankOptions { min_run_tokens: Some(0), express: Some(1e6), initial_share: share },
        RankOptions { initial_share: share, ..RankOptions::default() },
    ] {
        let probe = Probe { rank_options: options, ..probe() };
        let read = Probe::from_bytes(&probe.to_bytes(Storage::F32), "f").unwrap();
        assert_eq!(read.rank_options, options);
        assert_same(&read, &probe);
    }
    for (key, value) in [
        ("min_run_tokens", "-1"),
        ("express", "nan"),
        ("express", "2e6"),
        ("initial_share", "1.01"),
    ] {
        let refused = error(&file_with(&WHOLE, &FIRST, &[(key, value)]));
        assert!(refused.starts_with(&format!("f: metadata {key}: expected ")), "{refused}");
        assert!(refused.ends_with(&format!("found {value:?}")), "{refused}");
    }
}

#[test]
fn edges_and_model_are_checked() {
    let with = |changed: &[(&str, &str)]| {
        file_with(&WHOLE, &FIRST, &[&[("version", "2")], changed].concat())
    };
    let read = Probe::from_bytes(&with(&[("edges", "0,1.5,20")]), "f").unwrap();
    assert_eq!(read.bins.edges(), [0.0, 1.5, 20.0]);
    assert!(read.record.is_empty(), "{:?}", read.record);
    let edges = |text: &str| error(&with(&[("edges", text)]));
    assert_eq!(
        error(&with(&[])),
        "f: metadata edges: expected decimal numbers with commas between, found none"
    );
    assert_eq!(
        edges("0,x\n,2"),
        r#"f: metadata edges: expected decimal numbers with commas between, found "0,x\n,2""#
    );
    assert_eq!(
        edges("0,nan,2"),
        "f: metadata edges: expected edges of 1 to 64 bins, \
         found an edge at NaN after 0, not at least 1 above"
    );
    assert_eq!(
        edges("0,9,10,20"),
        "f: output.weight: expected F32 or BF16 [3, 3], found F32 [2, 3]"
    );
    assert!(edges(&vec!["7"; 100_000].join(",")).contains("found 66 edges, not 2 to 65"));
    let long = error(&with(&[("edges", "0,1.5,20"), ("model", &"é".repeat(129))]));
    assert!(long.starts_with("f: metadata model: expected at most 128 characters, found \"é"));
    let model = "é".repeat(128);
    let read = Probe::from_bytes(&with(&[("edges", "0,1.5,20"), ("model", &model)]), "f").unwrap();
    assert_eq!(read.model, Some(model));
    assert_eq!(
        error(&with(&[("version", "4")])),
        "f: metadata version: expected an integer from 1 to 3, found \"4\""
    );
}

#[test]
fn errors_name_the_file_the_tensor_and_both_sides() {
    let absent = Probe::open("/nowhere/probe.safetensors").err().unwrap().to_string();
    assert!(absent.starts_with("/nowhere/probe.safetensors: "), "{absent}");
    let error_with =
        |tensors: &Tensors, d: &str| error(&file_with(tensors, &FIRST, &[("hidden_size", d)]));
    assert_eq!(
        error_with(&WHOLE, "4"),
        "f: hidden.weight: expected F32 or BF16 [3, 4], found F32 [3, 5]"
    );
    assert_eq!(
        error_with(&WHOLE, "five\n"),
        r#"f: metadata hidden_size: expected an integer from 1 to 1048576, found "five\n""#
    );
    assert_eq!(
        error_with(&WHOLE[..3], "5"),
        "f: output.bias: expected a tensor of this name, found none"
    );
    let mut poisoned = WHOLE;
    poisoned[3].2 = &[0.5, f32::NAN];
    assert_eq!(
        error_with(&poisoned, "5"),
        "f: output.bias: expected finite values, found NaN at element 1"
    );
    assert!(error(b"junk").starts_with("f: header: expected a safetensors file, found "));
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = probe().to_bytes(Storage::Bf16);
    for end in 0..bytes.len() {
        assert_eq!(error(&bytes[..end]).lines().count(), 1);
    }
}

#[test]
fn no_bit_flip_panics() {
    let bytes = probe().to_bytes(Storage::Bf16);
    for bit in 0..8 * bytes.len() {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Err(error) = Probe::from_bytes(&bytes, "f") {
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}

#[test]
fn no_splice_panics() {
    let bytes = probe().to_bytes(Storage::Bf16);
    let mut rng = Rng::from_state(3);
    for _ in 0..20_000 {
        let mut at = || rng.below(bytes.len() as u64) as usize;
        let (from, to, len) = (at(), at(), at() / 8);
        let mut bytes = bytes.clone();
        let len = len.min(bytes.len() - from.max(to));
        bytes.copy_within(from..from + len, to);
        let _ = Probe::from_bytes(&bytes, "f");
    }
}

#[test]
fn a_probe_runs_on_the_requested_instruction_set() {
    let isa = |requested| Probe::random(5, 0, 1).with_isa(requested).map(|probe| probe.head.isa());
    assert_eq!((isa(Isa::Portable), isa(Isa::Auto)), (Ok(Isa::Portable), Ok(Isa::detect())));
    for requested in [Isa::Avx2, Isa::Avx512] {
        assert_eq!(isa(requested).is_ok(), requested.is_available());
    }
}
