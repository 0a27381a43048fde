//! Pointers of C, checked for null and alignment, as references.
//!
//! Each function's caller passes on the promise of the header: a pointer that is not null is to
//! that many values of that type, which nothing changes during the call.

use std::ffi::{CStr, c_char};

use crate::status::Failure;

/// Refuses a pointer that is to no value: before a call changes what it would write there.
pub(crate) fn check<T>(name: &str, pointer: *const T) -> Result<(), Failure> {
    match pointer {
        null if null.is_null() => Err(Failure::argument(format!("{name} is NULL"))),
        given if !given.is_aligned() => Err(Failure::argument(format!("{name} is not aligned"))),
        _ => Ok(()),
    }
}

/// The value at `pointer`.
pub(crate) unsafe fn reference<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, Failure> {
    check(name, pointer)?;
    // SAFETY: not null, aligned, and to a value by the caller's promise.
    Ok(unsafe { &*pointer })
}

/// The structure at `pointer`, which begins with its size. One of another version of the header is
/// refused before more than its size is read.
pub(crate) unsafe fn sized<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, Failure> {
    check(name, pointer)?;
    // SAFETY: not null, aligned, and a structure that begins with a size, as the caller promises.
    check_size::<T>(name, unsafe { pointer.cast::<usize>().read() })?;
    // SAFETY: as above, and the structure has the size of this one.
    Ok(unsafe { &*pointer })
}

/// Writes the defaults of a structure. One whose caller has another `size` is left as it is.
pub(crate) unsafe fn fill<T>(
    name: &str,
    pointer: *mut T,
    size: usize,
    default: T,
) -> Result<(), Failure> {
    check_size::<T>(name, size)?;
    // SAFETY: as the caller promises, of a structure of this size.
    unsafe { write(name, pointer, default) }
}

fn check_size<T>(name: &str, given: usize) -> Result<(), Failure> {
    match size_of::<T>() {
        expected if given == expected => Ok(()),
        expected => Err(Failure::argument(format!(
            "the size of {name} is {given}, and the library's structure has {expected} bytes: give \
             sizeof to its default function, and compile with the header of this library"
        ))),
    }
}

/// The value at `pointer`, for a call that changes it.
pub(crate) unsafe fn exclusive<'a, T>(name: &str, pointer: *mut T) -> Result<&'a mut T, Failure> {
    check(name, pointer)?;
    // SAFETY: not null, aligned, and to a value that no other call uses, by the caller's promise.
    Ok(unsafe { &mut *pointer })
}

/// Writes a result.
pub(crate) unsafe fn write<T>(name: &str, pointer: *mut T, value: T) -> Result<(), Failure> {
    check(name, pointer)?;
    // SAFETY: not null, aligned, and to room for a value by the caller's promise.
    unsafe { pointer.write(value) };
    Ok(())
}

/// `count` values at `pointer`, which may be null where there are none.
pub(crate) unsafe fn slice<'a, T>(
    name: &str,
    pointer: *const T,
    count: usize,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check(name, pointer)?;
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::argument(format!("{name} has {count} values: no memory holds them")));
    }
    // SAFETY: not null, aligned, to `count` values by the caller's promise, and not too long.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Writes `values` to `pointer`, which may be null where there are none.
pub(crate) unsafe fn write_all<T: Copy>(
    name: &str,
    pointer: *mut T,
    values: &[T],
) -> Result<(), Failure> {
    if values.is_empty() {
        return Ok(());
    }
    check(name, pointer)?;
    // SAFETY: not null, aligned, and to room for these values, apart from them, by the caller's
    // promise.
    unsafe { pointer.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Ok(())
}

/// A text that ends in a zero byte.
pub(crate) unsafe fn text<'a>(name: &str, pointer: *const c_char) -> Result<&'a str, Failure> {
    check(name, pointer)?;
    // SAFETY: not null, and ends in a zero byte by the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// `count` such texts.
pub(crate) unsafe fn texts(
    name: &str,
    pointers: *const *const c_char,
    count: usize,
) -> Result<Vec<String>, Failure> {
    // SAFETY: as the caller promises for the list and for each text.
    let pointers = unsafe { slice(name, pointers, count) }?;
    // SAFETY: as the caller promises.
    pointers.iter().map(|&text| unsafe { self::text(name, text) }.map(String::from)).collect()
}

/// Moves a handle to C.
pub(crate) unsafe fn give<T>(name: &str, pointer: *mut *mut T, value: T) -> Result<(), Failure> {
    check(name, pointer)?;
    // SAFETY: as the caller promises.
    unsafe { write(name, pointer, Box::into_raw(Box::new(value))) }
}

/// Ends a handle; null is none.
pub(crate) unsafe fn close<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: of `give`, and closed once, by the caller's promise.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_that_are_none_are_refused_by_name() {
        let bytes = [1_u64; 2];
        let odd = bytes.as_ptr().cast::<u8>().wrapping_add(1).cast::<u64>();
        // SAFETY: what is not null and aligned is an array of this function.
        unsafe {
            let why = |failure: Failure| failure.message;
            assert_eq!(
                reference::<u64>("a", std::ptr::null()).map_err(why),
                Err("a is NULL".into())
            );
            assert_eq!(reference("b", odd).map_err(why), Err("b is not aligned".into()));
            assert_eq!(slice::<u64>("c", std::ptr::null(), 0).map_err(why), Ok(&[][..]));
            assert!(slice("d", bytes.as_ptr(), usize::MAX).map_err(why).is_err());
            assert_eq!(slice("e", bytes.as_ptr(), 2).map_err(why), Ok(&bytes[..]));
            // Of another version of the header, and shorter: all that may be read is its size.
            let older = bytes.as_ptr().cast::<[usize; 4]>();
            let refusal = sized("f", older).map_err(why).expect_err("another size");
            assert!(refusal.starts_with("the size of f is 1, "), "{refusal}");
            assert!(
                text("f", c"\xff".as_ptr()).map_err(why).is_err_and(|why| why.contains("UTF-8"))
            );
            close::<u64>(std::ptr::null_mut());
        }
    }
}
