//! Lists of layers on the command line.

use std::str::FromStr;

use trail_setup::Error;

/// Layers that an option names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layers {
    /// All that there are.
    All,
    /// These, from 0, ascending.
    Some(Vec<usize>),
}

impl FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Layers, String> {
        if text == "all" {
            return Ok(Layers::All);
        }
        let layers = text.split(',').map(|layer| layer.trim().parse());
        let layers: Result<Vec<usize>, _> = layers.collect();
        let mut layers =
            layers.map_err(|_| "all, or layers from 0 with commas between".to_owned())?;
        layers.sort_unstable();
        layers.dedup();
        Ok(Layers::Some(layers))
    }
}

impl Layers {
    /// The layers, which must be among `present`.
    pub fn of(&self, present: &[usize]) -> Result<Vec<usize>, Error> {
        let Layers::Some(layers) = self else { return Ok(present.to_vec()) };
        match layers.iter().find(|layer| !present.contains(layer)) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked_against_what_is_there() {
        let of = |text: &str| text.parse::<Layers>().expect("a list").of(&[3, 4, 5]);
        assert_eq!(of("all"), Ok(vec![3, 4, 5]));
        assert_eq!(of("5, 3,5"), Ok(vec![3, 5]));
        let error = of("3,6").expect_err("refused").to_string();
        assert_eq!(error, "--layers names 6: there are 3, 4, 5");
        assert!("3,x".parse::<Layers>().is_err());
    }
}
