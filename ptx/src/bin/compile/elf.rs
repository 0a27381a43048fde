//! Reads the number of hardware barriers from a cubin's section headers: ptxas 12.4 does not print
//! it.

/// Hardware barriers of kernel `entry` in the ELF file `cubin`.
pub(crate) fn barriers(cubin: &[u8], entry: &str) -> Option<u32> {
    let section_table = word(cubin, 0x28, 8)?;
    let section_size = word(cubin, 0x3a, 2)?;
    let sections = word(cubin, 0x3c, 2)?;
    let header = |index: usize| cubin.get(section_table + index * section_size..);
    let names = word(header(word(cubin, 0x3e, 2)?)?, 0x18, 8)?;
    let wanted = format!(".text.{entry}");
    for index in 0..sections {
        let header = header(index)?;
        let name = cubin.get(names + word(header, 0, 4)?..)?;
        let name = name.split(|&byte| byte == 0).next()?;
        if name == wanted.as_bytes() {
            return Some((word(header, 8, 8)? >> 20) as u32 & 0x7f);
        }
    }
    None
}

/// The little-endian number of `bytes` bytes at `at`.
fn word(data: &[u8], at: usize, bytes: usize) -> Option<usize> {
    let slice = data.get(at..at + bytes)?;
    Some(slice.iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte)))
}
