//! Lists of layers on the command line.

use std::str::FromStr;

use serde_json::Value;
use trail_cli::Error;
use trail_probe::TapLayers;

/// Layers that an option names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layers {
    /// All that there are, one by one.
    All,
    /// These.
    Some(Vec<TapLayers>),
}

impl FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Layers, String> {
        if text == "all" {
            return Ok(Layers::All);
        }
        let layers: Result<Vec<TapLayers>, _> = text.split(',').map(str::parse).collect();
        let mut layers = layers.map_err(|_| {
            format!(
                "all, or layers from 0 with commas between; up to {} that ascend with + between \
                 are read side by side",
                TapLayers::MAX
            )
        })?;
        layers.sort_unstable_by_key(TapLayers::to_vec);
        layers.dedup();
        Ok(Layers::Some(layers))
    }
}

impl Layers {
    /// The layers, which must be among `present`.
    pub fn of(&self, present: &[usize]) -> Result<Vec<TapLayers>, Error> {
        let Layers::Some(layers) = self else {
            return Ok(present.iter().map(|&layer| TapLayers::one(layer)).collect());
        };
        let absent = |layer: &usize| !present.contains(layer);
        match layers.iter().flat_map(TapLayers::iter).find(absent) {
            None => Ok(layers.clone()),
            Some(layer) => {
                let present: Vec<String> = present.iter().map(usize::to_string).collect();
                Err(Error::usage(format!(
                    "--layers names {layer}: there are {}",
                    present.join(", ")
                )))
            }
        }
    }

    /// The single layers that [`Layers::of`] names, ascending.
    pub fn each_of(&self, present: &[usize]) -> Result<Vec<usize>, Error> {
        let named = self.of(present)?;
        let mut layers: Vec<usize> = named.iter().flat_map(TapLayers::iter).collect();
        layers.sort_unstable();
        layers.dedup();
        Ok(layers)
    }
}

/// The number of the only layer, or the text of several, for reports.
pub fn layer_json(layers: TapLayers) -> Value {
    layers.single().map_or_else(|| layers.to_string().into(), Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked_against_what_is_there() {
        let of = |text: &str| {
            let layers = text.parse::<Layers>().expect("a list").of(&[3, 4, 5])?;
            Ok(layers.iter().map(TapLayers::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(of("all"), Ok("3 4 5".to_owned()));
        assert_eq!(of("5, 3,5"), Ok("3 5".to_owned()));
        assert_eq!(of("5,3+4"), Ok("3+4 5".to_owned()));
        let error = of("3,4+6").map_err(|error: Error| error.to_string());
        assert_eq!(error, Err("--layers names 6: there are 3, 4, 5".to_owned()));
        for wrong in ["3,x", "4+3"] {
            assert!(wrong.parse::<Layers>().is_err(), "{wrong}");
        }
        let each = "4+5,3+4".parse::<Layers>().expect("a list").each_of(&[3, 4, 5]);
        assert_eq!(each, Ok(vec![3, 4, 5]));
    }
}
