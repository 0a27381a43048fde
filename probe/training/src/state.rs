//! The state of trainings between two epochs, in a file: they go on to the same weights.
//!
//! A safetensors file; for the training named `N`: F32 vectors `N.parameters`, `N.first_moments`,
//! `N.second_moments`, `N.best`, and metadata `N.epochs`, a line for each epoch. Metadata `key` is
//! what the training is of: a state of another one is refused.

use std::collections::HashMap;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use trail_platform::quote::quote;

use crate::train::{Epoch, Trainer};

/// `format` of a state file.
const FORMAT: &str = "trail-training-state";

/// The contents of a state file of `trainers`, each with its name.
pub fn state_bytes(trainers: &[(String, &Trainer<'_>)], key: &str) -> Vec<u8> {
    let mut metadata = HashMap::from([
        ("format".to_owned(), FORMAT.to_owned()),
        ("key".to_owned(), key.to_owned()),
    ]);
    let mut data = Vec::new();
    for (name, trainer) in trainers {
        for (part, values) in parts(trainer) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            data.push((format!("{name}.{part}"), values.len(), bytes));
        }
        let lines: Vec<String> = trainer.epochs.iter().map(line).collect();
        metadata.insert(format!("{name}.epochs"), lines.join("\n"));
    }
    let views = data.iter().map(|(name, len, bytes)| {
        let view = TensorView::new(Dtype::F32, vec![*len], bytes);
        (name, view.expect("as many values as the shape says"))
    });
    safetensors::serialize(views, Some(metadata)).expect("distinct names")
}

/// Brings `trainers`, which have not begun, to the state in `bytes`. Fails, and changes none, if
/// the state is of another training or damaged.
pub fn restore(
    trainers: &mut [(String, &mut Trainer<'_>)],
    bytes: &[u8],
    key: &str,
) -> Result<(), String> {
    // The message quotes names of the file.
    let damaged = |error: SafeTensorError| format!("damaged: {}", quote(&error.to_string()));
    let tensors = SafeTensors::deserialize(bytes).map_err(damaged)?;
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
    let metadata = header.metadata().clone().unwrap_or_default();
    if metadata.get("format").is_none_or(|format| format != FORMAT) {
        return Err("no state of a training".into());
    }
    if metadata.get("key").is_none_or(|of| of != key) {
        return Err("the state of a training with other options or data".into());
    }
    let mut restored: Vec<Trainer<'_>> = Vec::new();
    for (name, trainer) in trainers.iter() {
        let mut next = Trainer::clone(trainer);
        let lines = metadata.get(&format!("{name}.epochs")).ok_or("damaged: no epochs")?;
        next.epochs = lines.lines().map(epoch).collect::<Option<_>>().ok_or("damaged: epochs")?;
        next.mlp.steps = next.epochs.len() as u64 * next.steps_of_an_epoch();
        for (part, values) in parts_mut(&mut next) {
            let view = tensors.tensor(&format!("{name}.{part}")).map_err(damaged)?;
            if view.dtype() != Dtype::F32 || view.shape() != [values.len()] {
                return Err(format!("damaged: {name}.{part} is {:?}", view.shape()));
            }
            for (value, &bytes) in values.iter_mut().zip(view.data().as_chunks::<4>().0) {
                *value = f32::from_le_bytes(bytes);
            }
        }
        restored.push(next);
    }
    trainers.iter_mut().zip(restored).for_each(|((_, trainer), next)| **trainer = next);
    Ok(())
}

fn parts<'a>(trainer: &'a Trainer<'_>) -> [(&'static str, &'a [f32]); 4] {
    [
        ("parameters", &trainer.mlp.parameters),
        ("first_moments", &trainer.mlp.first_moments),
        ("second_moments", &trainer.mlp.second_moments),
        ("best", &trainer.best),
    ]
}

fn parts_mut<'a>(trainer: &'a mut Trainer<'_>) -> [(&'static str, &'a mut [f32]); 4] {
    [
        ("parameters", &mut trainer.mlp.parameters),
        ("first_moments", &mut trainer.mlp.first_moments),
        ("second_moments", &mut trainer.mlp.second_moments),
        ("best", &mut trainer.best),
    ]
}

/// An epoch as a line: numbers that are read back exactly.
fn line(epoch: &Epoch) -> String {
    let Epoch { number, training_loss, loss, mae, accuracy } = epoch;
    format!("{number} {training_loss} {loss} {mae} {accuracy}")
}

fn epoch(line: &str) -> Option<Epoch> {
    let words: Vec<&str> = line.split(' ').collect();
    let [number, training_loss, loss, mae, accuracy] = words[..] else { return None };
    Some(Epoch {
        number: number.parse().ok()?,
        training_loss: training_loss.parse().ok()?,
        loss: loss.parse().ok()?,
        mae: mae.parse().ok()?,
        accuracy: accuracy.parse().ok()?,
    })
}
