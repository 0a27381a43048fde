//! Runs of blocks that one copy moves.

use crate::cuda::error::CudaError;

/// Blocks side by side on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRange {
    pub(super) device: u32,
    pub(super) host: u32,
    pub(super) blocks: u32,
}

/// Calls `copy` with each run of adjacent (device, host) blocks.
pub(super) fn each_range(
    places: impl Iterator<Item = (u32, u32)>,
    mut copy: impl FnMut(BlockRange) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    let mut open: Option<BlockRange> = None;
    for (device, host) in places {
        match &mut open {
            Some(range)
                if (range.device + range.blocks, range.host + range.blocks) == (device, host) =>
            {
                range.blocks += 1;
            }
            _ => {
                if let Some(range) = open.replace(BlockRange { device, host, blocks: 1 }) {
                    copy(range)?;
                }
            }
        }
    }
    open.map_or(Ok(()), copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_adjacent_on_both_sides_is_one_run() {
        let runs = |places: &[(u32, u32)]| {
            let mut runs = Vec::new();
            each_range(places.iter().copied(), |range| {
                runs.push((range.device, range.host, range.blocks));
                Ok(())
            })
            .unwrap();
            runs
        };
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[(4, 0), (5, 1), (6, 2)]), [(4, 0, 3)]);
        assert_eq!(runs(&[(4, 0), (5, 2), (6, 3), (8, 4)]), [(4, 0, 1), (5, 2, 2), (8, 4, 1)]);
        assert_eq!(runs(&[(6, 0), (5, 1)]), [(6, 0, 1), (5, 1, 1)]);
    }
}
