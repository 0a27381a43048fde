//! The loader on valid files, on wrong ones, and on broken bytes.

use trail_base::Rng;

use super::*;

fn weights() -> Weights {
    Weights::random(5, 3, 2, 1)
}

fn bins() -> Bins {
    Bins::equal(2, 100)
}

fn error(bytes: &[u8]) -> String {
    Probe::from_bytes(bytes, "f").err().expect("an error").to_string()
}

/// A file with the given tensors and metadata of [`weights`].
fn file_with(tensors: &[(&str, &[usize], &[f32])], metadata: [(&str, String); 2]) -> Vec<u8> {
    serialize(FORMAT, bins(), metadata, tensors)
}

#[test]
fn survives_the_file() {
    let bytes = probe_bytes(&weights(), bins(), 11);
    assert_eq!(read_weights(&bytes, "f").unwrap(), (weights(), bins(), 11));
    let path = std::env::temp_dir().join(format!("trail-probe-{}", std::process::id()));
    std::fs::write(&path, &bytes).unwrap();
    let probe = Probe::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!((probe.layer, probe.bins, probe.head.d(), probe.head.bins()), (11, bins(), 5, 2));
}

#[test]
fn errors_name_the_file_the_tensor_and_both_sides() {
    let absent = Probe::open("/nowhere/probe.safetensors").err().unwrap().to_string();
    assert!(absent.starts_with("/nowhere/probe.safetensors: "), "{absent}");
    let metadata = |d: &str| [("layer", "1".to_string()), ("hidden_size", d.to_string())];
    let whole: [(&str, &[usize], &[f32]); 4] = [
        ("hidden.weight", &[3, 5], &[0.5; 15]),
        ("hidden.bias", &[3], &[0.5; 3]),
        ("output.weight", &[2, 3], &[0.5; 6]),
        ("output.bias", &[2], &[0.5; 2]),
    ];
    assert!(Probe::from_bytes(&file_with(&whole, metadata("5")), "f").is_ok());
    assert_eq!(
        error(&file_with(&whole, metadata("4"))),
        "f: hidden.weight: expected F32 [3, 4], found F32 [3, 5]"
    );
    assert_eq!(
        error(&file_with(&whole, metadata("five\n"))),
        r#"f: metadata hidden_size: expected an integer from 1 to 1048576, found "five\n""#
    );
    assert_eq!(
        error(&file_with(&whole[..3], metadata("5"))),
        "f: output.bias: expected a tensor of this name, found none"
    );
    let mut poisoned = whole;
    poisoned[3].2 = &[0.5, f32::NAN];
    assert_eq!(
        error(&file_with(&poisoned, metadata("5"))),
        "f: output.bias: expected finite values, found NaN at element 1"
    );
    assert!(error(b"junk").starts_with("f: header: expected a safetensors file, found "));
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = probe_bytes(&weights(), bins(), 11);
    for end in 0..bytes.len() {
        assert_eq!(error(&bytes[..end]).lines().count(), 1);
    }
}

#[test]
fn no_bit_flip_panics() {
    let bytes = probe_bytes(&weights(), bins(), 11);
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
    let bytes = probe_bytes(&weights(), bins(), 11);
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
