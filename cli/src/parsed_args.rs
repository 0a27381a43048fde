//! Engine options that a benchmark composes.

use clap::Parser;

use crate::args::{Device, EngineArgs};
use crate::error::Error;

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Options {
    #[command(flatten)]
    engine: EngineArgs,
}

impl EngineArgs {
    /// The same arithmetic with other `options`, as on a command line.
    pub fn parsed(&self, options: &[String]) -> Result<EngineArgs, Error> {
        let parsed = Options::try_parse_from(options);
        let mut engine = parsed.map_err(|error| Error::usage(error.to_string()))?.engine;
        engine.cpu = self.cpu;
        if engine.device == Device::Auto {
            engine.device = self.device;
        }
        engine.threads = engine.threads.or(self.threads);
        Ok(engine)
    }
}
