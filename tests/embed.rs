//! Runs the embedding example as a test.

#[path = "../examples/embed.rs"]
#[allow(unreachable_pub)]
mod embed;

#[test]
fn the_embedding_example_answers() {
    embed::main().expect("an answer");
}
