//! A model as programs of other languages open it.

use std::path::Path;
use std::time::Duration;

use trail_cli::{Answer, OpenModel, TextOptions};
use trail_runtime::engine::{Event, FinishReason, Request};

fn open(more: &[&str]) -> Result<OpenModel, trail_cli::Error> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo");
    let demo = demo.to_str().expect("UTF-8");
    let options = [&["--model", demo, "--threads", "1"], more].concat();
    OpenModel::open(&options.into_iter().map(String::from).collect::<Vec<_>>())
}

/// The text of an answer, its tokens, and the reason of its end.
fn read(answer: &mut Answer) -> (String, usize, FinishReason) {
    let (mut text, mut tokens) = (String::new(), 0);
    while let Some((event, piece)) = answer.next(Duration::from_secs(60)) {
        text += &piece;
        tokens += usize::from(matches!(event, Event::Token { .. }));
    }
    (text, tokens, answer.finished().expect("the end"))
}

#[test]
fn an_answer_ends_at_its_length_or_before_a_stop_string() {
    let model = open(&["--max-running", "2"]).expect("the bundled model");
    assert_eq!(model.engine().max_running(), 2);
    let prompt = model.setup().raw_prompt("Once upon a time").expect("a tokenizer");
    let submit = |stops: &[&str]| {
        let mut request = Request::new(prompt.clone(), 60);
        (request.sampling.temperature, request.ignore_eos) = (0.0, true);
        let stops = stops.iter().map(|&stop| stop.to_owned()).collect();
        model.submit(request, stops, TextOptions::default())
    };
    let (whole, tokens, reason) = read(&mut submit(&[]).expect("room"));
    assert_eq!((tokens, reason), (60, FinishReason::Length));
    let stop = whole.split_whitespace().nth(3).expect("words");
    let mut answer = submit(&[stop]).expect("room");
    let (text, tokens, reason) = read(&mut answer);
    assert_eq!(text, whole[..whole.find(stop).expect("it is there")]);
    assert!(tokens < 60 && reason == FinishReason::Stop && answer.stop() == Some(stop));
    assert!(answer.next(Duration::ZERO).is_none(), "the end was the last event");
    let wrong = submit(&[""]).err().expect("refused");
    assert!(wrong.code() == 2 && wrong.to_string().contains("stop string"), "{wrong}");
}

#[test]
fn a_text_that_cannot_fit_is_refused_before_it_is_tokenized() {
    let model = open(&["--kv-blocks", "4"]).expect("the bundled model");
    model.check_room(["one two three", "four"]).expect("64 tokens of room");
    let long = "one two ".repeat(300);
    for texts in [vec![&*long], vec![&long[..1200], &long[..1200]]] {
        let why = model.check_room(texts).expect_err("refused").to_string();
        assert!(why.contains("has room for 64 tokens") && why.contains("shorten it"), "{why}");
    }
}

#[test]
fn a_wrong_option_is_named_in_one_line() {
    for (options, says) in [
        (
            &["--kv-block=4"][..],
            "unexpected argument '--kv-block' found; tip: a similar argument exists: '--kv-blocks'",
        ),
        (&["--kv-blocks", "many"], "invalid value 'many' for '--kv-blocks"),
        (&["--kv-blocks=-1"], "invalid value '-1' for '--kv-blocks"),
        (&["--model", "a"], "--model is given 2 times"),
        (&["--policy", "oracle"], "needs the true length"),
    ] {
        let error = open(options).err().expect("refused");
        let text = error.to_string();
        assert!(text.contains(says), "{text}");
        assert!(error.code() == 2 && text.lines().count() == 1, "{text}");
    }
    let unknown = OpenModel::check_name("--no-such").expect_err("refused").to_string();
    assert!(unknown.starts_with("unexpected argument '--no-such'"), "{unknown}");
    OpenModel::check_name("--kv-blocks").expect("an option with a value");
    OpenModel::check_name("--no-prefix-cache").expect("one without");
}
