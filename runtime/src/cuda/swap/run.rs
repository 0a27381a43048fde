//! Runs of blocks that one copy moves.

use crate::cuda::CudaError;

/// Blocks side by side on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) device: u32,
    pub(super) host: u32,
    pub(super) blocks: u32,
}

/// Calls `copy` with each run of adjacent (device, host) blocks.
pub(super) fn each_run(
    places: impl Iterator<Item = (u32, u32)>,
    mut copy: impl FnMut(Run) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    let mut open: Option<Run> = None;
    for (device, host) in places {
        match &mut open {
            Some(run) if (run.device + run.blocks, run.host + run.blocks) == (device, host) => {
                run.blocks += 1;
            }
            _ => {
                if let Some(run) = open.replace(Run { device, host, blocks: 1 }) {
                    copy(run)?;
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
            each_run(places.iter().copied(), |run| {
                runs.push((run.device, run.host, run.blocks));
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
