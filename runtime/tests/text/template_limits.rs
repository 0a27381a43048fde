//! The limits of chat templates.

use std::fs;

use trail_runtime::text::{ChatError, ChatTemplate};

use crate::safety::{folder, message, template};

fn compiled(source: &str) -> Result<ChatTemplate, ChatError> {
    ChatTemplate::new(Some(source.into()), String::new(), String::new())
}

fn render(source: &str) -> Result<String, ChatError> {
    template(source).render(&[message("user", "hi")], true)
}

#[test]
fn hostile_templates_end_and_are_named() {
    let hostile = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}\
         {% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = ns.x * 8 %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(9) %}\
         {% set ns.x = ns.x | replace('a', ns.x ~ 'aaaa') %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(9) %}\
         {% set ns.x = ns.x.replace('a', ns.x ~ 'aaaa') %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(9) %}\
         {% set ns.x = range(9999) | map('string') | join(ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(9) %}\
         {% set ns.x = ns.x.join(range(9999) | map('string') | list) %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}\
         {% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}\
         {% set ns.x = [ns.x, range(99999) | list] %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(24) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}\
         {{ ns.x.split('b') | length }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(24) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}\
         {{ ns.x | list | length }}",
        "{% set ns = namespace(x='ab', all=[]) %}{% for i in range(20) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}\
         {% for i in range(9999) %}{% set ns.all = [ns.all, ns.x ~ i] %}{% endfor %}",
        "{{ '%999999999s' | format('x') }}",
        "{{ '{:999999999}'.format('x') }}",
        "{{ 'x' | indent(999999999, true) }}",
        "{{ 'x' | indent(width=999999999, first=true) }}",
        "{{ [1] | tojson(indent=999999999) }}",
    ];
    let text = "word ".repeat(200);
    let long = format!("{{% for i in range(99999) %}}{text}{{% endfor %}}");
    let captured =
        format!("{{% set x %}}{{% for i in range(99999) %}}{text}{{% endfor %}}{{% endset %}}");
    for source in hostile.into_iter().chain([long.as_str(), captured.as_str()]) {
        match render(source) {
            Err(error @ ChatError::Exceeds { .. }) => {
                assert!(error.to_string().starts_with("the chat template of chat_template uses"));
            }
            other => panic!("{source}: {:?}", other.map(|text| text.len())),
        }
    }
}

/// Lists in each other, which writing, comparing and dropping recurse over.
#[test]
fn nested_values_end_no_process() {
    let build = "{% set ns = namespace(a=[], b=[]) %}{% for i in range(9000) %}STEP{% endfor %}USE";
    for step in [
        "{% set ns.a = [ns.a] %}",
        "{% set ns.a = {'k': ns.a} %}",
        "{% set ns.a = dict(k=ns.a) %}",
        "{% set ns.a = (ns.a,) %}",
        "{% set ns.a = ns.a | batch(1) | list %}{% set ns.a = [ns.a] %}",
        "{% set ns.a = [ns.a] %}{% set ns.b = [ns.a] %}",
    ] {
        for value in
            ["{{ ns.a }}", "{{ ns.a | tojson }}", "{{ ns.a == ns.b }}", "{{ ns.a ~ '' }}", ""]
        {
            let source = build.replace("STEP", step).replace("USE", value);
            let error = render(&source).expect_err(&source).to_string();
            assert!(error.contains("in each other"), "{source}: {error}");
        }
    }
    let filters = "{% set a = [[1]] %}{{ aFILTERS | length }}"
        .replace("FILTERS", &"|batch(1)|list".repeat(4000));
    let error = render(&filters).expect_err("many filters").to_string();
    assert!(error.contains("in each other"), "{error}");
    // A namespace in itself, which would also wait for its own lock.
    for source in [
        "{% set ns = namespace(a=1) %}{% set ns.a = ns %}{{ ns }}",
        "{% set ns = namespace(a=1) %}{% set ns.a = [{'n': ns}] %}{{ ns }}",
        "{% set a = namespace(x=1) %}{% set b = namespace(x=a) %}{% set a.x = b %}{{ a }}",
    ] {
        let error = render(source).expect_err(source).to_string();
        assert!(error.contains("namespaces"), "{source}: {error}");
    }
    let deep = "{% set ns = namespace(a=[]) %}{% for i in range(150) %}{% set ns.a = [ns.a] %}\
                {% endfor %}{{ ns.a | length }}";
    assert_eq!(render(deep).expect("150 levels"), "1");
}

/// Chains as long as a source may be, over which the compiler recurses.
#[test]
fn long_chains_end_no_process() {
    for (first, link, last) in [
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ 1", "+1", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ a", ".b", " }}"),
        ("{{ a", "|e", " }}"),
        ("{{ a", "[0]", " }}"),
        ("{{ 1", " if 1 else 1", " }}"),
        ("{{ ", "(", " }}"),
        ("{{ ", "[", " }}"),
        ("{{ 1", " and 1", " }}"),
        ("{{ 1", " == 1", " }}"),
        ("{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
        ("", "{% if 1 %}", ""),
        ("", "{% for i in [1] %}", ""),
    ] {
        let links = (60_000 - first.len() - last.len()) / link.len();
        let source = [first, &link.repeat(links), last].concat();
        // An error or a text: the process lives.
        let _ = compiled(&source).map(|template| template.render(&[message("user", "hi")], true));
    }
    for constant in ["{{ 'a'*100000000 }}", "{{ (1,)*100000000 }}", "{{ 'a'*1000*(1000+0) }}"] {
        let error = compiled(&constant.repeat(60)).err().expect(constant).to_string();
        assert!(error.contains("constants may take more than 64 MiB"), "{error}");
    }
    let arithmetic = "{% if messages | length * 1000 > 100000 %}a{% endif %}{{ '-' * 80 }}";
    assert_eq!(render(arithmetic).expect("a text").len(), 80);
}

#[test]
fn a_template_that_is_used_too_much_is_named_by_its_file() {
    let folder = folder("named");
    let source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    fs::write(folder.join("chat_template.jinja"), source).expect("write");
    // It renders no conversation, which is known at the load.
    let error = ChatTemplate::load(&folder).err().expect("refused").to_string();
    assert!(error.contains("chat_template.jinja uses more than 5000000 instructions"), "{error}");
}

#[test]
fn metering_changes_no_text() {
    for (source, expected) in [
        ("{{ 1 + 2 }}{{ 'a' + 'b' }}{{ 'a' ~ 1 ~ none }}{{ [1] + [2] }}", "3aba1None[1, 2]"),
        ("{{ 2 * 3 }}{{ 'ab' * 2 }}{{ 3 - 1 }}", "6abab2"),
        ("{% if 1 < 2 and 'a' in 'ab' and not 2 == 3 %}yes{% else %}no{% endif %}", "yes"),
        (
            "{% for x in [1, 2] %}{% if x == 2 %}{% continue %}{% endif %}<{{ x }}>{% endfor %}.",
            "<1>.",
        ),
        (
            "{% macro f(x, y='z') %}[{{ x }}{{ y }}]{% endmacro %}{{ f(1) }}{{ f(2, y='w') }}",
            "[1z][2w]",
        ),
        ("{{ 'a,b'.split(',') | join('+') }}{{ 'aXa'.replace('a', 'b') }}", "a+bbXb"),
        ("{{ 'a\\nb' | indent(2) }}{{ ['x', 'y'] | join }}", "a\n  bxy"),
        ("{{ {'a': [1]} | tojson(indent=1) }}", "{\n \"a\": [\n  1\n ]\n}"),
        ("{{ 'abc'[::-1] }}{{ missing }}{{ missing ~ 'x' }}{{ missing is defined }}", "cbaxFalse"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        ),
        ("{{ 'x' if messages[0]['role'] != 'user' else 'y' }}", "y"),
        ("{{ '%s-%d' | format('a', 5) }}", "a-5"),
    ] {
        assert_eq!(render(source).expect(source), expected, "{source}");
    }
}
