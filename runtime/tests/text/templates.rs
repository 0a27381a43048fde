//! Chat templates against transformers' environment: each template of the folder with each
//! conversation gives the recorded text, or is refused. `tests/golden/make/chat_templates.py` made
//! the record.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use trail_runtime::text::{ChatTemplate, OrderedMembers};

/// Refused by transformers alone, which has no prompt that could differ.
const REFUSED_THERE: [&str; 3] = [
    "{% set ns = namespace() %}{% set ns._x = 1 %}{{ ns._x }}",
    "{{ '%s' | format('a', 'b') }}",
    "{{ [1, 'a'] | sort }}",
];

#[derive(Deserialize)]
struct Record {
    results: BTreeMap<String, Places>,
    texts: Vec<String>,
}

/// Places in the list of texts, -1 for a refusal.
#[derive(Deserialize)]
#[serde(untagged)]
enum Places {
    Equal(isize),
    Each(Vec<isize>),
}

impl Places {
    fn of(&self, conversation: usize) -> isize {
        match self {
            Places::Equal(place) => *place,
            Places::Each(places) => places[conversation],
        }
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text/templates")
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(name)).expect(name)
}

/// Names and sources, as the script names them.
fn templates() -> Vec<(String, String)> {
    let files = fs::read_dir(folder()).expect("a folder");
    let names = files.map(|file| file.expect("a file").file_name().into_string().expect("a name"));
    let names = names.filter(|name| name.ends_with(".jinja"));
    let mut templates: Vec<_> = names.map(|name| (name.clone(), read(&name))).collect();
    let lines = read("expressions.txt");
    let line = |(at, line): (usize, &str)| (format!("line {at}"), line.to_owned());
    templates.extend((1..).zip(lines.lines()).map(line));
    templates
}

#[test]
fn each_text_is_that_of_transformers_or_refused() {
    let conversations: Vec<OrderedMembers> =
        serde_json::from_str(&read("conversations.json")).expect("conversations");
    let record: Record = serde_json::from_str(&read("recorded.json")).expect("a record");
    let (mut equal, mut refused_here) = (0, 0);
    let templates = templates();
    assert_eq!(record.results.len(), templates.len(), "the record is of other templates");
    for (name, source) in templates {
        let template = ChatTemplate::new(Some(source.clone()), "<s>".into(), "</s>".into());
        for (at, conversation) in conversations.iter().enumerate() {
            let text = match &template {
                Ok(template) => {
                    template.render_json(conversation).map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let expected = usize::try_from(record.results[&name].of(at)).ok();
            match (text, expected.map(|place| &record.texts[place])) {
                (Ok(text), Some(expected)) => {
                    assert_eq!(&text, expected, "{name}, conversation {at}: {source}");
                    equal += 1;
                }
                (Ok(text), None) => {
                    let is_known = REFUSED_THERE.contains(&source.as_str());
                    assert!(is_known, "{name}, conversation {at}: {source}: {text:?}");
                }
                (Err(error), Some(_)) => {
                    assert_eq!(error.lines().count(), 1, "{name}: {error}");
                    let is_of_family = name.ends_with(".jinja") && name != "fields.jinja";
                    assert!(!is_of_family, "{name}, conversation {at}: {error}");
                    refused_here += 1;
                }
                (_, None) => {}
            }
        }
    }
    // More may only become equal: a change that refuses what was rendered fails here.
    assert!(equal >= 2411 && refused_here <= 612, "{equal} equal, {refused_here} refused");
}
