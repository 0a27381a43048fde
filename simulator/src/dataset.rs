//! The data sets of the papers, as distributions of prompt and output lengths.
//!
//! Only Alpaca's output lengths are published in detail. Of the others the papers give means and
//! limits; the shape is assumed to be log-normal, the usual fit of chat lengths.

use std::fmt;
use std::str::FromStr;

use crate::arrivals::Lengths;

/// Lengths of prompts and outputs; independent of each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dataset {
    /// Its name.
    pub name: &'static str,
    /// Prompt lengths.
    pub prompt: Lengths,
    /// Output lengths.
    pub output: Lengths,
    /// Largest output length, tokens: the requests' `max_tokens`.
    pub max_tokens: u32,
}

impl Dataset {
    /// Alpaca answered by Llama-3-8B under a cap of 512 (TRAIL): output lengths as released.
    /// Prompts: an instruction in its template, assumed uniform around 80 tokens.
    pub const ALPACA: Dataset = Dataset {
        name: "alpaca",
        prompt: Lengths::Uniform { min: 50, max: 110 },
        output: Lengths::AlpacaLike { cap: 512 },
        max_tokens: 512,
    };

    /// LMSYS-Chat-1M (Learning to Rank, appendix B): mean prompt 85 tokens; outputs 100 tokens
    /// shorter than ShareGPT's, their mean of 215 is that of the data set's own paper (Zheng et
    /// al. 2023). Assumed: log-normal with coefficients of variation of 1.3 and 1.
    pub const LMSYS: Dataset = Dataset {
        name: "lmsys",
        prompt: Lengths::LogNormal { mean: 85.0, variation: 1.3, min: 4, max: 1024 },
        output: Lengths::LogNormal { mean: 215.0, variation: 1.0, min: 4, max: 4096 },
        max_tokens: 4096,
    };

    /// ShareGPT (Learning to Rank, appendix B): mean prompt 240 tokens, outputs 100 tokens longer
    /// than LMSYS-Chat-1M's. Assumed: log-normal with coefficients of variation of 1.3 and 1.
    pub const SHAREGPT: Dataset = Dataset {
        name: "sharegpt",
        prompt: Lengths::LogNormal { mean: 270.0, variation: 1.3, min: 4, max: 1024 },
        output: Lengths::LogNormal { mean: 315.0, variation: 1.0, min: 4, max: 4096 },
        max_tokens: 4096,
    };

    /// The set of RR-SJF (section 5): Chatbot Arena prompts answered greedily by Llama-3.2-1B under
    /// a cap of 1,024; 4 to 1,024 tokens, at least half below the cap, most others at it. Assumed:
    /// log-normal with a median of 850 tokens, cut at the cap, which 42 % reach.
    pub const RR_SJF: Dataset = Dataset {
        name: "rr-sjf",
        prompt: Lengths::LogNormal { mean: 85.0, variation: 1.3, min: 4, max: 1024 },
        output: Lengths::LogNormal { mean: 1274.0, variation: 1.117, min: 4, max: 1024 },
        max_tokens: 1024,
    };

    /// All, by name.
    pub const ALL: [Dataset; 4] =
        [Dataset::ALPACA, Dataset::LMSYS, Dataset::SHAREGPT, Dataset::RR_SJF];
}

impl Dataset {
    /// The same with outputs of at most `max_tokens`.
    pub fn capped(self, max_tokens: u32) -> Dataset {
        Dataset { output: self.output.capped(max_tokens), max_tokens, ..self }
    }
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for Dataset {
    type Err = String;

    fn from_str(name: &str) -> Result<Dataset, String> {
        Dataset::ALL.into_iter().find(|dataset| dataset.name == name).ok_or_else(|| {
            let names = Dataset::ALL.map(|dataset| dataset.name).join(", ");
            format!("unknown lengths '{name}': choose one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trail_platform::rng::Rng;

    /// Draws of a length: their mean, and the share at the cap.
    fn draws(lengths: Lengths, cap: u32) -> (f64, f64) {
        let (mut rng, count) = (Rng::new(9), if cfg!(miri) { 100 } else { 50_000 });
        let all: Vec<u32> = (0..count).map(|_| lengths.tokens(&mut rng)).collect();
        let sum: f64 = all.iter().map(|&tokens| f64::from(tokens)).sum();
        let at_cap = all.iter().filter(|&&tokens| tokens == cap).count();
        assert!(all.iter().all(|&tokens| (1..=cap).contains(&tokens)));
        (sum / f64::from(count), at_cap as f64 / f64::from(count))
    }

    #[test]
    #[cfg_attr(miri, ignore = "means of many draws")]
    fn data_sets_have_their_published_means() {
        for (dataset, prompt, output) in
            [(Dataset::LMSYS, 85.0, 215.0), (Dataset::SHAREGPT, 240.0, 315.0)]
        {
            let means = [draws(dataset.prompt, 1024).0, draws(dataset.output, 4096).0];
            for (got, want) in means.into_iter().zip([prompt, output]) {
                assert!((got / want - 1.0_f64).abs() < 0.05, "{dataset}: {got}, not {want}");
            }
        }
        let (_, at_cap) = draws(Dataset::RR_SJF.output, 1024);
        assert!((0.35..0.5).contains(&at_cap), "{at_cap} at the cap");
        assert_eq!("sharegpt".parse(), Ok(Dataset::SHAREGPT));
        assert!("c4".parse::<Dataset>().unwrap_err().contains("alpaca, lmsys"));
    }
}
