//! Variants of the GPU path that no GPU has measured yet: off by default.

use std::str::FromStr;

/// Names of the variants, and what each does.
pub(crate) const NAMES: [(&str, &str); 5] = [
    ("megakernel", "all layers of a decode step of up to 4 requests in one launch"),
    ("hopper-products", "products, and attention of prompts, by TMA and wgmma"),
    ("hopper-clusters", "with hopper-products: more than 128 rows in clusters with multicast"),
    ("split-prefill", "several blocks share a long context of a short prompt chunk (split-KV)"),
    ("sampler-teams", "several multiprocessors truncate the probabilities of a row"),
];

/// A value of `--experimental`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Experimental {
    /// By the order of [`NAMES`].
    chosen: [bool; NAMES.len()],
}

impl Experimental {
    /// Returns true if the variant `name` was chosen.
    pub(crate) fn has(self, name: &str) -> bool {
        NAMES.iter().zip(self.chosen).any(|((known, _), chosen)| chosen && *known == name)
    }

    /// Help of the option, one variant a line.
    pub(crate) fn help() -> String {
        let lines = NAMES.map(|(name, line)| format!("\n{name:<16} {line}"));
        format!(
            "GPU: variants run by the emulator alone so far, separated by commas{}",
            lines.concat()
        )
    }
}

impl FromStr for Experimental {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut list = Experimental::default();
        for name in text.split(',').map(str::trim) {
            let at = NAMES.iter().position(|(known, _)| *known == name).ok_or_else(|| {
                let known = NAMES.map(|(name, _)| name).join(", ");
                format!("there is no variant '{name}': choose from {known}")
            })?;
            list.chosen[at] = true;
        }
        match list.has("hopper-clusters") && !list.has("hopper-products") {
            true => Err("hopper-clusters is a part of hopper-products: name both".into()),
            false => Ok(list),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_chosen_by_name() {
        let list: Experimental = "megakernel, split-prefill".parse().expect("two variants");
        let chosen = NAMES.map(|(name, _)| list.has(name));
        assert_eq!(chosen, [true, false, false, true, false]);
    }

    #[test]
    fn unknown_and_incomplete_lists_are_refused() {
        for (list, says) in [
            ("mega", "'mega': choose from megakernel"),
            ("", "no variant ''"),
            ("hopper-clusters", "name both"),
        ] {
            let error = list.parse::<Experimental>().expect_err(list);
            assert!(error.contains(says), "{list}: {error}");
        }
    }
}
