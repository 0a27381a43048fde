use std::sync::Arc;

use super::*;

fn answer(index: u32, prompt: &[u32], tokens: &[u32], stopped: bool) -> Answer {
    Answer { index, prompt: prompt.to_vec(), tokens: tokens.to_vec(), stopped }
}

fn collected() -> Collected {
    let mut shard = Collected::new(&[3, 7], 2);
    shard.push(answer(5, &[1, 2], &[4, 5, 6, 7], true));
    shard.push_rows(&[1, 3]);
    for layer in 0..2 {
        shard.extend(layer, &[1.0 + layer as f32, 2.0, 3.0, 4.0]);
        shard.mean(layer, &[0.5, -0.5]);
    }
    shard.push(answer(9, &[8], &[4], false));
    shard.push_rows(&[]);
    (0..2).for_each(|layer| shard.mean(layer, &[7.0, 8.0]));
    shard
}

fn parse(bytes: Vec<u8>) -> Result<Shard, ShardError> {
    Shard::parse(Arc::new(bytes), "a.safetensors")
}

#[test]
fn what_is_written_is_read() {
    let collected = collected();
    let shard = parse(collected.to_bytes(&[("model", "m".into())])).expect("a shard");
    assert_eq!(shard.answers(), collected.answers());
    assert_eq!(shard.rows(), [Row { request: 0, generated: 1 }, Row { request: 0, generated: 3 }]);
    assert_eq!((shard.layers().collect::<Vec<_>>(), shard.hidden()), (vec![3, 7], 2));
    assert_eq!((shard.metadata("model"), shard.metadata("other")), (Some("m"), None));
    assert_eq!(shard.answers()[0].remaining(3), 1);
    let mut row = [0.0; 2];
    shard.activation(7, 0, &mut row);
    assert_eq!(row, [2.0, 2.0]);
    shard.activation(3, 1, &mut row);
    assert_eq!(row, [3.0, 4.0]);
    shard.mean(3, 1, &mut row);
    assert_eq!(row, [7.0, 8.0]);
    assert_eq!(shard.non_finite(3), None);
}

#[test]
fn values_that_are_not_finite_are_named() {
    let mut shard = Collected::new(&[0], 2);
    shard.push(answer(0, &[1], &[2, 3], true));
    shard.push_rows(&[1]);
    shard.extend(0, &[1.0, f32::NAN]);
    shard.mean(0, &[0.0, 0.0]);
    let shard = parse(shard.to_bytes(&[])).expect("a shard");
    assert_eq!(shard.non_finite(0).as_deref(), Some("rows.0 has NaN or infinity in row 0"));
}

#[test]
fn a_shard_cut_anywhere_is_refused() {
    let bytes = collected().to_bytes(&[]);
    for len in 0..bytes.len() {
        let error = parse(bytes[..len].to_vec()).err().expect("refused");
        assert_eq!(error.to_string().lines().count(), 1);
    }
}

#[test]
fn a_changed_header_gives_a_shard_or_an_error() {
    let bytes = collected().to_bytes(&[]);
    for at in 0..bytes.len() {
        for flip in [1, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            if let Ok(shard) = parse(changed) {
                let mut row = vec![0.0; shard.hidden()];
                for layer in shard.layers() {
                    (0..shard.rows().len()).for_each(|i| shard.activation(layer, i, &mut row));
                }
            }
        }
    }
}

#[test]
fn an_error_is_one_line_whatever_the_names_are() {
    let mut bytes = collected().to_bytes(&[]);
    let find = |bytes: &[u8], part: &[u8]| {
        bytes.windows(part.len()).position(|at| at == part).expect("in the header")
    };
    // A name with a line break, of a tensor that overlaps the one before it.
    let name = find(&bytes, b"answer.ends");
    bytes[name] = b'\\';
    let offsets = b"data_offsets\":[";
    let begin = name + find(&bytes[name..], offsets) + offsets.len();
    let digit = begin + find(&bytes[begin..], b",") - 1;
    bytes[digit] = if bytes[digit] == b'0' { b'1' } else { bytes[digit] - 1 };
    let error = parse(bytes).err().expect("an overlap").to_string();
    assert!(error.contains("\\nswer.ends") && !error.contains('\n'), "{error}");
}

#[test]
fn rows_outside_of_their_answer_are_refused() {
    for generated in [&[4][..], &[0], &[2, 1]] {
        let mut shard = Collected::new(&[0], 1);
        shard.push(answer(0, &[1], &[2, 3, 4, 5], true));
        shard.push_rows(generated);
        shard.extend(0, &vec![0.0; generated.len()]);
        shard.mean(0, &[0.0]);
        let error = parse(shard.to_bytes(&[])).err().expect("refused");
        assert!(error.why.contains("outside of its answer"), "{error}");
    }
}
