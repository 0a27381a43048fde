//! Arrays of numpy, read in place.

use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::error;

/// The values of a matrix `[rows, width]` in standard order, and the width.
pub(crate) fn matrix<'a>(of: &'a PyReadonlyArray2<'_, f32>) -> PyResult<(&'a [f32], usize)> {
    // A slice is there in the order of columns, too.
    let values = of.as_slice().ok().filter(|_| of.is_c_contiguous());
    let values = values.ok_or_else(|| {
        error::request("the rows do not lie one after the other: give numpy.ascontiguousarray(...)")
    })?;
    Ok((values, of.shape()[1]))
}

/// The values of a column, of the `rows` that others have too.
pub(crate) fn column<'a, T: numpy::Element>(
    name: &str,
    of: &'a PyReadonlyArray1<'_, T>,
    rows: usize,
) -> PyResult<&'a [T]> {
    if of.len() != rows {
        return Err(error::request(format!("{name} has {} values, not {rows}", of.len())));
    }
    of.as_slice().map_err(|_| error::request(format!("{name} is not in one piece of memory")))
}

/// The same as counts of tokens, or as numbers of answers.
pub(crate) fn counts(
    name: &str,
    of: &PyReadonlyArray1<'_, i64>,
    rows: usize,
) -> PyResult<Vec<u32>> {
    let count = |&given: &i64| {
        u32::try_from(given).map_err(|_| {
            let max = u32::MAX;
            error::request(format!("{name} has {given}: give whole numbers from 0 to {max}"))
        })
    };
    column(name, of, rows)?.iter().map(count).collect()
}
