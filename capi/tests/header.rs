//! The header is the one that the sources give.

use std::path::Path;

/// Writes the header instead if `TRAIL_WRITE_HEADER` is set.
#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("the settings");
    let sources = ["status", "engine", "event", "request", "scheduler", "probe", "tracker"];
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(root.join(format!("src/{source}.rs")));
    }
    let mut header = Vec::new();
    builder.generate().expect("sources that parse").write(&mut header);
    let made = String::from_utf8(header).expect("UTF-8");
    let path = root.join("include/trail_rt.h");
    if std::env::var_os("TRAIL_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).expect("written");
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == checked_in,
        "include/trail_rt.h is not that of the sources: run TRAIL_WRITE_HEADER=1 cargo test -p \
         trail-capi --test header"
    );
}
