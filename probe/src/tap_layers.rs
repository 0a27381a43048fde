//! The layers whose outputs a probe reads.

use std::fmt;
use std::str::FromStr;

/// One to four layers, 0-based and ascending, whose outputs a probe reads side by side. Prints as
/// `21`, or `12+21`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapLayers {
    layers: [u32; TapLayers::MAX],
    count: usize,
}

impl TapLayers {
    /// Most layers of a probe.
    pub const MAX: usize = 4;

    /// One layer.
    ///
    /// # Panics
    /// If the index exceeds `u32`.
    pub fn one(layer: usize) -> TapLayers {
        let layer = u32::try_from(layer).expect("an index of a layer");
        TapLayers { layers: [layer, 0, 0, 0], count: 1 }
    }

    /// Several layers; `None` unless they are 1 to 4 and ascend.
    pub fn new(layers: &[u32]) -> Option<TapLayers> {
        let ascend = layers.windows(2).all(|pair| pair[0] < pair[1]);
        let fits = ascend && (1..=TapLayers::MAX).contains(&layers.len());
        fits.then(|| {
            let mut all = [0; TapLayers::MAX];
            all[..layers.len()].copy_from_slice(layers);
            TapLayers { layers: all, count: layers.len() }
        })
    }

    /// The layers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.layers[..self.count].iter().map(|&layer| layer as usize)
    }

    /// Number of layers.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The last layer: with its output a prediction can begin.
    pub fn last(&self) -> usize {
        self.layers[self.count - 1] as usize
    }

    /// The only layer; `None` if there are several.
    pub fn single(&self) -> Option<usize> {
        (self.count == 1).then(|| self.last())
    }

    /// Collects the layers.
    pub fn to_vec(&self) -> Vec<usize> {
        self.iter().collect()
    }
}

impl fmt::Display for TapLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers: Vec<String> = self.iter().map(|layer| layer.to_string()).collect();
        f.write_str(&layers.join("+"))
    }
}

impl FromStr for TapLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<TapLayers, String> {
        let layers: Result<Vec<u32>, _> = text.split('+').map(|part| part.trim().parse()).collect();
        layers.ok().and_then(|layers| TapLayers::new(&layers)).ok_or_else(|| {
            format!("a layer from 0, or up to {} that ascend with + between", TapLayers::MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_ascend() {
        let parsed: TapLayers = "3+ 7".parse().unwrap();
        assert_eq!((parsed.to_vec(), parsed.to_string()), (vec![3, 7], "3+7".to_owned()));
        assert_eq!((parsed.last(), parsed.count(), parsed.single()), (7, 2, None));
        assert_eq!(TapLayers::one(5).single(), Some(5));
        for wrong in ["", "7+3", "3+3", "1+2+3+4+5", "x", "4294967296"] {
            assert!(wrong.parse::<TapLayers>().is_err(), "{wrong}");
        }
    }
}
