//! Loads: arrival rates as multiples of the capacity.

use std::fmt;
use std::str::FromStr;

/// One load of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Arrivals at this multiple of the capacity.
    Rate(f64),
    /// All requests at once.
    Burst,
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Load, String> {
        match (text, text.parse()) {
            ("burst", _) => Ok(Load::Burst),
            (_, Ok(load)) if (1e-3..=1e3).contains(&load) => Ok(Load::Rate(load)),
            _ => Err("give a number from 0.001 to 1000, or burst".into()),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Rate(load) => write!(f, "{load:.2}"),
            Load::Burst => f.write_str("burst"),
        }
    }
}
