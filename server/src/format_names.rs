//! Formats of answers by the names that options give them.

/// The name of `format` in `names`; empty if it has none.
pub(crate) fn name<T: PartialEq>(names: &[(&'static str, T)], format: &T) -> &'static str {
    names.iter().find(|(_, known)| known == format).map_or("", |(name, _)| name)
}

/// The format that has `name` in `names`; else the message of an option.
pub(crate) fn find<T: Copy>(names: &[(&'static str, T)], name: &str) -> Result<T, String> {
    let format = names.iter().find(|(known, _)| *known == name).map(|(_, format)| *format);
    format.ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        format!("there is no such format: give one of {}", names.join(", "))
    })
}
