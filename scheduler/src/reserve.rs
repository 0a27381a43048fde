//! The reserve: KV blocks for the predicted growth of the batch.

#[cfg(feature = "log")]
use serde::{Deserialize, Serialize};

use crate::limits::blocks_for;
use crate::request::RequestState;

/// Growth for which free blocks are required when a request enters the batch from the queue: that
/// of the running requests and its own. More: fewer evictions, smaller batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize), serde(rename_all = "snake_case"))]
pub enum Reserve {
    /// None beyond the watermark: blocks for the present tokens suffice.
    #[default]
    // Decision logs keep the name of format version 2.
    #[cfg_attr(feature = "log", serde(rename = "present"))]
    None,
    /// The expected remaining tokens.
    Mean,
    /// The 90 % quantile of the remaining tokens; until the probe's first prediction the expected
    /// ones.
    P90,
}

impl Reserve {
    /// Blocks of the predicted tokens of `request` beyond those of its present ones. Without a
    /// prediction: of all that `max_tokens` leaves.
    pub(crate) fn growth(self, request: &RequestState) -> u32 {
        let remaining = match self {
            Reserve::None => return 0,
            Reserve::Mean => request.remaining(),
            Reserve::P90 => request.remaining_p90(),
        };
        let max = request.max_tokens.saturating_sub(request.generated);
        let remaining = remaining.map_or(max, |tokens| tokens.ceil() as u32);
        blocks_for(request.tokens() + remaining) - blocks_for(request.tokens())
    }
}
