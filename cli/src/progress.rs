//! Progress bars on stderr: of a device's start, and of downloads.

use std::borrow::Cow;

use indicatif::{ProgressBar, ProgressStyle};
use trail_platform::printable_line;
use trail_runtime::backend::Progress;

/// Returns a callback that shows one bar per stage: bytes and their rate for the weights, counts
/// for the others. Nothing is shown if stderr is not a terminal.
pub(crate) fn reporter() -> impl FnMut(Progress) {
    let mut bar: Option<(&'static str, ProgressBar)> = None;
    move |Progress { what, done, total }| {
        if bar.as_ref().is_none_or(|(shown, _)| *shown != what) {
            bar = Some((what, new(what, total)));
        }
        if let Some((_, bar)) = &bar {
            bar.set_position(done);
            if done >= total {
                bar.finish_and_clear();
            }
        }
    }
}

/// A bar of `total` bytes. Nothing is shown if stderr is not a terminal.
pub(crate) fn bytes(what: String, total: u64) -> ProgressBar {
    let template =
        "{msg:24!} [{bar:32}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}";
    bar(printable_line(&what).into_owned().into(), total, template)
}

fn new(what: &'static str, total: u64) -> ProgressBar {
    let template = match what {
        "weights" => {
            "{msg:8} [{bar:32}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}"
        }
        _ => "{msg:8} [{bar:32}] {pos} of {len}",
    };
    bar(what.into(), total, template)
}

fn bar(what: Cow<'static, str>, total: u64, template: &str) -> ProgressBar {
    // The templates are constants; the test below checks them.
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_come_and_go() {
        for what in ["kernels", "weights", "graphs"] {
            let bar = new(what, 10);
            bar.set_position(10);
            assert_eq!((bar.position(), bar.message().as_str()), (10, what));
        }
        assert_eq!(bytes("model.safetensors".into(), 10).message(), "model.safetensors");
        let mut report = reporter();
        for done in 0..=3 {
            report(Progress { what: "weights", done, total: 3 });
        }
    }
}
