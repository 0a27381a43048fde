//! Sizes for people.

/// `bytes` in the largest binary unit that is not above it, with three digits.
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(units.len() as u32);
    let Some(unit) = power.checked_sub(1).map(|index| units[index as usize]) else {
        return format!("{bytes} B");
    };
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    let digits = 2 - (value.log10() as usize).min(2);
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (100 << 20, "100 MiB"),
            (3 << 29, "1.50 GiB"),
            (1 << 62, "4194304 TiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }
}
