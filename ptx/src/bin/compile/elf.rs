//! Reads what ptxas does not print from the sections of a cubin.

/// Hardware barriers of kernel `entry` in the ELF file `cubin`: ptxas 12.4 does not print them.
pub(crate) fn barriers(cubin: &[u8], entry: &str) -> Option<u32> {
    Some((word(header(cubin, entry)?, 8, 8)? >> 20) as u32 & 0x7f)
}

/// Machine code of kernel `entry`.
pub(crate) fn code<'a>(cubin: &'a [u8], entry: &str) -> Option<&'a [u8]> {
    let header = header(cubin, entry)?;
    let (at, bytes) = (word(header, 0x18, 8)?, word(header, 0x20, 8)?);
    cubin.get(at..at.checked_add(bytes)?)
}

/// The file from the header of the section with the code of kernel `entry` on.
fn header<'a>(cubin: &'a [u8], entry: &str) -> Option<&'a [u8]> {
    let section_table = word(cubin, 0x28, 8)?;
    let section_size = word(cubin, 0x3a, 2)?;
    let sections = word(cubin, 0x3c, 2)?;
    let header = |index: usize| cubin.get(section_table + index * section_size..);
    let names = word(header(word(cubin, 0x3e, 2)?)?, 0x18, 8)?;
    let wanted = format!(".text.{entry}");
    (0..sections).filter_map(header).find(|header| {
        let name = word(header, 0, 4).and_then(|at| cubin.get(names + at..));
        name.and_then(|name| name.split(|&byte| byte == 0).next()) == Some(wanted.as_bytes())
    })
}

/// The little-endian number of `bytes` bytes at `at`.
fn word(data: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let slice = data.get(at..at + bytes)?;
    Some(slice.iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte)))
}
