//! Host functions in a stream.

use super::queue::Work;
use super::state::{Handle, ready};
use super::stream::queue;
use super::{api, error};

api! {
    fn cuLaunchHostFunc(stream: Handle, function: usize, argument: usize) {
        if function == 0 {
            return Err(error::INVALID_VALUE);
        }
        queue(ready()?, stream, Work::Call { function, argument }).map(|_| ())
    }
}
