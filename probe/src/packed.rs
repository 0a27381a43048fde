//! Weights packed for the kernels, in one of three types.

use std::ops::Range;
use std::str::FromStr;

use half::bf16;

use crate::line::{LANES, Line, ZERO};
use crate::weights::Weights;

/// Inputs whose weights lie together: one load reads both in bf16.
pub(crate) const PAIR: usize = 2;

/// Type of a head's weights in memory. Sums are f32 with each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadDtype {
    /// As trained.
    F32,
    /// Half the bytes to read beside the model's own weights; predicted bins rarely change
    /// (docs/results.md).
    #[default]
    Bf16,
    /// A quarter of the bytes: each hidden unit has its scale. The second layer, which is small,
    /// is bf16.
    Int8,
}

impl HeadDtype {
    /// Every type.
    pub const ALL: [HeadDtype; 3] = [HeadDtype::F32, HeadDtype::Bf16, HeadDtype::Int8];

    /// The name, as options have it.
    pub fn name(self) -> &'static str {
        match self {
            HeadDtype::F32 => "f32",
            HeadDtype::Bf16 => "bf16",
            HeadDtype::Int8 => "int8",
        }
    }

    /// Bytes of a weight of the first layer.
    pub fn bytes(self) -> usize {
        match self {
            HeadDtype::F32 => 4,
            HeadDtype::Bf16 => 2,
            HeadDtype::Int8 => 1,
        }
    }

    /// Type of the second layer.
    pub(crate) fn output(self) -> HeadDtype {
        match self {
            HeadDtype::F32 => HeadDtype::F32,
            HeadDtype::Bf16 | HeadDtype::Int8 => HeadDtype::Bf16,
        }
    }

    /// The weights that a head of this type computes with. In int8 those of a unit are whole
    /// numbers up to 127 and its bias is divided by its scale s; relu(s x) = s relu(x), so the
    /// second layer takes s, and the kernels know of no scale.
    pub fn round(self, weights: &Weights) -> Weights {
        let mut rounded = weights.clone();
        if self == HeadDtype::Int8 {
            (0..weights.hidden).for_each(|unit| rounded.round_unit(unit));
        }
        let to_bf16 = |weights: &mut [f32]| {
            weights.iter_mut().for_each(|w| *w = bf16::from_f32(*w).to_f32());
        };
        if self == HeadDtype::Bf16 {
            to_bf16(&mut rounded.hidden_weight);
            if let Some(prompt) = &mut rounded.prompt {
                to_bf16(&mut prompt.mean_weight);
            }
        }
        if self.output() == HeadDtype::Bf16 {
            to_bf16(&mut rounded.output_weight);
        }
        rounded
    }
}

impl FromStr for HeadDtype {
    type Err = String;

    fn from_str(name: &str) -> Result<HeadDtype, String> {
        let found = HeadDtype::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| format!("no type {name}: f32, bf16 or int8"))
    }
}

impl Weights {
    /// Rounds hidden unit `unit` to whole numbers of its scale.
    fn round_unit(&mut self, unit: usize) {
        let Weights { d, hidden, .. } = *self;
        let row = unit * d..(unit + 1) * d;
        let of_prompt = self.prompt.as_ref().map_or(&[][..], |of| &of.mean_weight[row.clone()]);
        let of_unit = self.hidden_weight[row.clone()].iter().chain(of_prompt);
        let largest = of_unit.fold(0.0_f32, |max, w| max.max(w.abs()));
        let scale = if largest > 0.0 { largest / 127.0 } else { 1.0 };
        let whole = |w: &mut f32| *w = (*w / scale).round();
        self.hidden_weight[row.clone()].iter_mut().for_each(whole);
        self.hidden_bias[unit] /= scale;
        if let Some(prompt) = &mut self.prompt {
            prompt.mean_weight[row].iter_mut().for_each(whole);
            prompt.length_weight[unit] /= scale;
        }
        let of_unit = |values: &mut [f32], change: &dyn Fn(&mut f32)| {
            values.iter_mut().skip(unit).step_by(hidden).for_each(change);
        };
        of_unit(&mut self.age_bias, &|bias| *bias /= scale);
        of_unit(&mut self.output_weight, &|weight| *weight *= scale);
    }
}

/// Packed weights: a sequence of pairs of inputs, each with the weights of a panel's 16 columns.
///
/// * f32: the 16 weights of the first input, then those of the second.
/// * bf16: 16 words, each with the first input's weight in its lower half, the second's in its
///   upper. One shift or one mask widens either to f32.
/// * int8: as f32, in bytes.
pub(crate) struct Packed {
    dtype: HeadDtype,
    lines: Box<[Line]>,
}

impl Packed {
    /// Packs `pairs`, each the weights of a column for two inputs. They are those of
    /// [`HeadDtype::round`].
    pub(crate) fn new<F: Fn(usize) -> [f32; PAIR]>(
        dtype: HeadDtype,
        pairs: impl Iterator<Item = F>,
    ) -> Packed {
        let mut bytes = Vec::new();
        for pair in pairs {
            let columns: [[f32; PAIR]; LANES] = std::array::from_fn(pair);
            let halves = (0..PAIR).flat_map(|half| columns.map(|column| column[half]));
            match dtype {
                HeadDtype::F32 => halves.for_each(|w| bytes.extend(w.to_le_bytes())),
                HeadDtype::Bf16 => columns.as_flattened().iter().for_each(|&w| {
                    bytes.extend(bf16::from_f32(w).to_le_bytes());
                }),
                HeadDtype::Int8 => bytes.extend(halves.map(|w| w as i8 as u8)),
            }
        }
        let mut lines = vec![ZERO; bytes.len().div_ceil(size_of::<Line>())];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(&bytes);
        Packed { dtype, lines: lines.into() }
    }

    /// The type.
    pub(crate) fn dtype(&self) -> HeadDtype {
        self.dtype
    }

    /// The bytes of `pairs`.
    pub(crate) fn bytes(&self, pairs: Range<usize>) -> &[u8] {
        let pair = PAIR * LANES * self.dtype.bytes();
        &bytemuck::cast_slice(&self.lines)[pairs.start * pair..pairs.end * pair]
    }
}

#[cfg(test)]
mod tests {
    use trail_platform::Rng;

    use super::*;
    use crate::inputs::Inputs;
    use crate::reference;

    #[test]
    fn rounded_weights_are_nearly_the_same_function() {
        let (d, mut rng) = (if cfg!(miri) { 8 } else { 256 }, Rng::new(3));
        let mut weights = Weights::random(d, 2 * d, 10, 4).with_random(Inputs::ALL[3], 5);
        // A unit without weights has no scale.
        weights.hidden_weight[..d].fill(0.0);
        let activation: Vec<f32> = (0..d).map(|_| 2.0 * rng.signed()).collect();
        let mean: Vec<f32> = (0..d).map(|_| 2.0 * rng.signed()).collect();
        let row =
            reference::Row { activation: &activation, generated: 7, prompt: Some((&mean, 50)) };
        let exact = reference::forward(&weights, row).probabilities;
        // Weights are off by at most 2^-9 of themselves in bf16, 1/254 of the largest in int8. 256
        // such errors of either sign add up to 16, against 256 terms of half the largest weight.
        for (dtype, bound) in
            [(HeadDtype::F32, 0.0), (HeadDtype::Bf16, 2e-3), (HeadDtype::Int8, 4e-3)]
        {
            let rounded = reference::forward(&dtype.round(&weights), row).probabilities;
            let off = rounded.iter().zip(&exact).map(|(a, b)| (a - b).abs());
            let max = off.fold(0.0, f64::max);
            assert!(max <= bound, "{}: {max}", dtype.name());
        }
    }

    #[test]
    fn names_are_read_back() {
        for dtype in HeadDtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        assert!("int4".parse::<HeadDtype>().is_err_and(|why| why.contains("int4")));
    }
}
