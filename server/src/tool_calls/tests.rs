//! Answers in each format: whole, and divided in every way.

use trail_platform::Rng;

use super::{Part, ToolFormat, ToolParser};

const NAMES: [&str; 3] = ["add", "get_weather", "f"];

fn parser(format: ToolFormat, only_first: bool) -> ToolParser {
    ToolParser::new(format, NAMES.map(str::to_owned).to_vec(), only_first)
}

/// Appends parts, and joins those that a division has made of one.
fn append(parts: &mut Vec<Part>, new: Vec<Part>) {
    for part in new {
        match (parts.last_mut(), part) {
            (Some(Part::Text(last)), Part::Text(text)) => last.push_str(&text),
            (Some(Part::Arguments(last)), Part::Arguments(text)) => last.push_str(&text),
            (_, part) => parts.push(part),
        }
    }
}

fn parts<'a>(format: ToolFormat, deltas: impl Iterator<Item = &'a str>) -> Vec<Part> {
    let mut parser = parser(format, false);
    let mut parts = Vec::new();
    deltas.for_each(|delta| append(&mut parts, parser.push(delta)));
    append(&mut parts, parser.finish());
    parts
}

/// Content and calls of `text`, which are those of its characters one by one and of two halves.
fn read(format: ToolFormat, text: &str) -> (String, Vec<(String, String)>) {
    let whole = parts(format, [text].into_iter());
    let at = |at: usize| (0..=at).rev().find(|&at| text.is_char_boundary(at)).expect("0 is one");
    let characters = text.char_indices().map(|(at, next)| &text[at..at + next.len_utf8()]);
    assert_eq!(parts(format, characters), whole, "{text}");
    for cut in (0..text.len()).step_by(text.len() / 64 + 1).map(at) {
        let halves = [&text[..cut], &text[cut..]];
        assert_eq!(parts(format, halves.into_iter()), whole, "{halves:?}");
    }
    let (mut content, mut calls) = (String::new(), Vec::new());
    for part in whole {
        match part {
            Part::Text(text) => content.push_str(&text),
            Part::Call(name) => calls.push((name, String::new())),
            Part::Arguments(text) => calls.last_mut().expect("a call").1.push_str(&text),
        }
    }
    (content, calls)
}

fn expect(format: ToolFormat, text: &str, content: &str, calls: &[(&str, &str)]) {
    let calls = calls.iter().map(|&(name, arguments)| (name.to_owned(), arguments.to_owned()));
    assert_eq!(read(format, text), (content.to_owned(), calls.collect()), "{text}");
}

fn stays_text(format: ToolFormat, texts: &[&str]) {
    texts.iter().for_each(|text| expect(format, text, text, &[]));
}

#[test]
fn hermes() {
    let format = ToolFormat::Hermes;
    let one =
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call>";
    let two = "<tool_call>{\"arguments\": {}, \"name\": \"f\"}</tool_call>";
    let add = ("add", "{\"a\": 1, \"b\": [2]}");
    expect(format, one, "", &[add]);
    expect(format, &format!("{one}\n{two}\n"), "", &[add, ("f", "{}")]);
    expect(format, &format!("Let me see.\n{one}\nDone. "), "Let me see.\nDone. ", &[add]);
    // The model ended without the closing tag.
    expect(format, one.strip_suffix("\n</tool_call>").expect("it ends so"), "", &[add]);
    expect(
        format,
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call> \\\"}é\"}}</tool_call>",
        "",
        &[("f", "{\"s\": \"</tool_call> \\\"}é\"}")],
    );
    stays_text(
        format,
        &[
            "",
            " plain < text <tool_cal",
            "<tool_call>",
            "<tool_call></tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1, }}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {}}} </tool_call>",
            "<tool_call>{\"name\": \"unheard\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
            "<tool_call>{\"name\": \"f\"}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"name\": \"add\", \"arguments\": {}}</tool_call>",
            "See {\"name\": \"f\", \"arguments\": {}}",
            "```json\n{\"a\": 1}\n```",
            "```json",
            " ``",
            "{\"name\": \"f\"}",
        ],
    );
    let bare = "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}";
    expect(format, bare, "", &[add]);
    expect(format, &format!(" {bare}\n{bare}\n```"), "", &[add, add]);
    expect(format, &format!("```json\n{bare}\n{bare}\n```\nSo."), "\nSo.", &[add, add]);
    // The one behind a malformed one counts.
    let broken = "<tool_call>{\"name\": f}";
    expect(format, &format!("{broken}{two}"), broken, &[("f", "{}")]);
}

#[test]
fn llama3_json() {
    let format = ToolFormat::Llama3Json;
    let add = ("add", "{\"a\": 1}");
    expect(format, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}", "", &[add]);
    expect(format, " <|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": 1}}", "", &[add]);
    expect(format, "So: <|python_tag|>{\"name\":\"f\",\"arguments\":{}}", "So:", &[("f", "{}")]);
    expect(
        format,
        "{\"type\": \"function\", \"name\": \"add\", \"parameters\": {\"a\": 1}}; \
         {\"name\": \"f\", \"parameters\": {}}\n",
        "",
        &[add, ("f", "{}")],
    );
    expect(format, "{\"name\": \"f\", \"parameters\": {}} is it", " is it", &[("f", "{}")]);
    stays_text(
        format,
        &[
            "{\"name\": \"Bob\", \"parameters\": {}}",
            "{\"answer\": 7}",
            "{ \"a\": [1, {\"name\": \"f\"}]} ",
            "It is {\"name\": \"f\", \"parameters\": {}}",
            "{\"name\": \"f\", \"parameters\": {}",
            "<|python_tag|>print(1)",
            " ",
            "[f()]",
        ],
    );
}

#[test]
fn pythonic() {
    let format = ToolFormat::Pythonic;
    expect(format, "[f()]", "", &[("f", "{}")]);
    expect(
        format,
        " [add(a=1, b=-2.5), get_weather(city=\"Köln\", days=[1, 2,], deep={'x': (True, None)})]\n",
        "",
        &[
            ("add", "{\"a\": 1, \"b\": -2.5}"),
            (
                "get_weather",
                "{\"city\": \"Köln\", \"days\": [1, 2], \"deep\": {\"x\": [true, null]}}",
            ),
        ],
    );
    let quotes = r#"[f(a='it''s', b="a\n\x41é\q", c='''two
lines "''', d='', e=1_000, g=.5, h=1., i=false)]"#;
    stays_text(format, &[quotes]);
    expect(
        format,
        &quotes.replace("it''s", "it\\'s"),
        "",
        &[(
            "f",
            "{\"a\": \"it's\", \"b\": \"a\\nAé\\\\q\", \"c\": \"two\\nlines \\\"\", \"d\": \"\", \
             \"e\": 1000, \"g\": 0.5, \"h\": 1.0, \"i\": false}",
        )],
    );
    stays_text(
        format,
        &[
            "[1, 2, 3]",
            "[f]",
            "[f(1)]",
            "[f(a=1, a=2)]",
            "[f(a=b)]",
            "[f(a=1), g()]",
            "[f(a=1",
            "[f(a='x)]",
            "[f(a=\"\"",
            "see [f()]",
            "[]",
            "[f(a={1: 2})]",
        ],
    );
}

#[test]
fn mistral() {
    let format = ToolFormat::Mistral;
    let add = ("add", "{\"a\": 1}");
    let list = "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}}, \
                {\"name\": \"f\", \"arguments\": {}, \"id\": \"abc\"}]";
    expect(format, list, "", &[add, ("f", "{}")]);
    expect(format, &format!("Now. {list}"), "Now.", &[add, ("f", "{}")]);
    expect(
        format,
        "[TOOL_CALLS]add[ARGS]{\"a\": 1}[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{}",
        "",
        &[add, ("f", "{}")],
    );
    expect(format, "[TOOL_CALLS]add{\"a\": 1}", "", &[add]);
    stays_text(
        format,
        &[
            "[TOOL_CALLS]",
            "[TOOL_CALLS] []",
            "[TOOL_CALLS]unheard[ARGS]{}",
            "[TOOL_CALLS]f[ARGS]",
            "[TOOL_CALLS]f[ARGS]{\"a\": }",
            "[1, 2] [TOOL",
        ],
    );
}

#[test]
fn harmony() {
    let format = ToolFormat::Harmony;
    let call = |name: &str, arguments: &str| {
        format!("<|channel|>commentary to=functions.{name}<|message|>{arguments}")
    };
    let add = ("add", "{\"a\": 1}");
    expect(format, &call("add", "{\"a\": 1}"), "", &[add]);
    expect(format, &format!("Now.{}", call("f", "{}")), "Now.", &[("f", "{}")]);
    let others = [call("unheard", "{}"), call("f", "[]"), call("f", "{\"a\": }")];
    stays_text(format, &others.each_ref().map(String::as_str));
    stays_text(format, &["Hi.", "<|channel|>comm"]);
}

/// A call of more bytes is passed on before its end.
#[test]
fn long_arguments_are_passed_on_as_they_arrive() {
    let long = format!("{{\"s\": \"{}\"}}", "x}]é ".repeat(1000));
    for (format, begin, end) in [
        (ToolFormat::Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": ", "\n}\n</tool_call>"),
        (ToolFormat::Llama3Json, "{\"name\": \"f\", \"parameters\": ", "}"),
        (ToolFormat::Mistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": ", "}]"),
        (ToolFormat::Mistral, "[TOOL_CALLS]f[ARGS]", ""),
        (ToolFormat::Pythonic, "[f(s=", ")]"),
    ] {
        if format == ToolFormat::Pythonic {
            let list = format!("{begin}\"{}\"{end}", "x".repeat(3000));
            assert_eq!(read(format, &list).1.len(), 1);
            continue;
        }
        expect(format, &format!("{begin}{long}{end}\n"), "", &[("f", &long)]);
        // Cut by the answer's length: the beginning of the arguments is there already.
        expect(format, &format!("{begin}{}", &long[..4000]), "", &[("f", &long[..4000])]);
        let mut parser = parser(format, false);
        let early = parser.push(&format!("{begin}{}", &long[..2000]));
        assert!(matches!(&early[..], [Part::Call(_), Part::Arguments(_)]), "{early:?}");
    }
    // No name within that length.
    let nameless = format!("<tool_call>{{\"arguments\": {long}, \"name\": \"f\"}}</tool_call>");
    stays_text(ToolFormat::Hermes, &[&nameless]);
}

#[test]
fn without_parallel_calls_the_first_one_counts() {
    let mut parser = parser(ToolFormat::Pythonic, true);
    let mut parts = parser.push("[f(), add(a=1)]");
    parts.extend(parser.finish());
    assert_eq!(parts, [Part::Call("f".into()), Part::Arguments("{}".into())]);
    assert_eq!(parser.calls(), 1);
}

/// Pieces of all formats in any order, so that most are malformed.
#[test]
fn any_division_gives_the_same_parts() {
    const PIECES: [&str; 24] = [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "[",
        "]",
        "{",
        "}",
        "{\"name\": \"f\", ",
        "\"arguments\": ",
        "\"parameters\": ",
        "{\"a\": \"é\"}",
        "f(",
        "add",
        ")",
        "a=1",
        ", ",
        "; ",
        "\"",
        "\\",
        " ",
        "\n",
        "text",
    ];
    let formats =
        [ToolFormat::Hermes, ToolFormat::Llama3Json, ToolFormat::Pythonic, ToolFormat::Mistral];
    let mut rng = Rng::new(7);
    for _ in 0..4000 {
        let mut text = String::new();
        for _ in 0..rng.below(24) {
            text.push_str(PIECES[rng.below(PIECES.len() as u64) as usize]);
        }
        formats.iter().for_each(|&format| drop(read(format, &text)));
    }
}

#[test]
fn a_format_is_known_by_its_template() {
    let of = |source: &str| ToolFormat::of_template(source);
    assert_eq!(of("{{ '<tool_call>' }}"), Some(ToolFormat::Hermes));
    assert_eq!(of("<tool_call><function=f>"), None);
    assert_eq!(of("{{ '[TOOL_CALLS]' }}"), Some(ToolFormat::Mistral));
    assert_eq!(of("{{ '<|python_tag|>' }}"), Some(ToolFormat::Llama3Json));
    assert_eq!(of("[func_name1(params_name1=params_value1)]"), Some(ToolFormat::Pythonic));
    assert_eq!(of("{{ messages }}"), None);
    assert_eq!("hermes".parse(), Ok(ToolFormat::Hermes));
    assert_eq!(ToolFormat::Llama3Json.to_string(), "llama3_json");
    assert!("x".parse::<ToolFormat>().is_err_and(|why| why.contains("pythonic")));
}
