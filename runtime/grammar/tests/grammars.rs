//! Answers drawn at random under a grammar, with the bundled model's tokenizer.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use trail_grammar::{AfterReasoning, Both, GrammarCompiler, GrammarSpec, TokenRules};
use trail_platform::Rng;
use trail_runtime::backend::TokenMask;
use trail_runtime::engine::{Constraint, ConstraintFault};
use trail_runtime::model::Model;
use trail_runtime::text::Tokenizer;

/// Tokens after which an answer is cut.
const LIMIT: usize = 600;

struct Bench {
    tokenizer: Arc<Tokenizer>,
    compiler: GrammarCompiler,
    eos: Vec<u32>,
    vocab_size: usize,
}

fn bench() -> Bench {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo");
    let model = Model::load(&path).unwrap();
    let tokenizer = Arc::new(Tokenizer::load(&path, model.config.vocab_size).unwrap());
    let compiler = GrammarCompiler::new(tokenizer.clone(), &model.config);
    let eos = model.config.eos_tokens.clone();
    Bench { tokenizer, compiler, eos, vocab_size: model.config.vocab_size }
}

impl Bench {
    /// An answer of random allowed tokens; `None` if it was cut.
    fn draw(&self, constraint: &dyn Constraint, seed: u64) -> Option<String> {
        let mut random = Rng::new(seed);
        let mut matcher = constraint.matcher(&self.eos);
        let mut tokens = Vec::new();
        while tokens.len() < LIMIT {
            let before = tokens.len();
            matcher.force(&mut tokens).unwrap();
            if let Some(end) = tokens[before..].iter().position(|id| self.eos.contains(id)) {
                tokens.truncate(before + end);
                return Some(self.tokenizer.decode(&tokens, true));
            }
            let mask = matcher.mask().unwrap();
            let allowed: Vec<u32> =
                (0..self.vocab_size as u32).filter(|&id| mask.allows(id)).collect();
            let ends = allowed.iter().any(|id| self.eos.contains(id));
            if ends && random.below(3) == 0 {
                return Some(self.tokenizer.decode(&tokens, true));
            }
            let token = allowed[random.below(allowed.len() as u64) as usize];
            if self.eos.contains(&token) {
                return Some(self.tokenizer.decode(&tokens, true));
            }
            matcher.accept(token).unwrap();
            tokens.push(token);
        }
        None
    }

    fn error(&self, spec: GrammarSpec) -> String {
        let result = self.compiler.compile(&spec);
        let error = result.err().map(|error| error.to_string());
        error.unwrap_or_else(|| panic!("{spec:?} is compiled"))
    }
}

fn schema(schema: Value, compact: bool) -> GrammarSpec {
    GrammarSpec::JsonSchema { schema, compact }
}

#[test]
fn answers_to_a_schema_are_json_of_its_form() {
    let bench = bench();
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["a", "b", 3, null]}, "maxItems": 3},
            "born": {"type": "string", "format": "date"},
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    for compact in [false, true] {
        let grammar = bench.compiler.compile(&schema(person.clone(), compact)).unwrap();
        let mut complete = 0;
        for seed in 0..40 {
            let Some(text) = bench.draw(&*grammar, seed) else { continue };
            complete += 1;
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
            let object = value.as_object().unwrap();
            assert!(object["name"].as_str().unwrap().chars().count() <= 12, "{text}");
            assert!((0..=120).contains(&object["age"].as_i64().unwrap()), "{text}");
            let known = |key: &String| ["name", "age", "tags", "born"].contains(&&**key);
            assert!(object.keys().all(known), "{text}");
            if let Some(tags) = object.get("tags") {
                let tags = tags.as_array().unwrap();
                let is_tag =
                    |tag: &Value| [json!("a"), json!("b"), json!(3), json!(null)].contains(tag);
                assert!(tags.len() <= 3 && tags.iter().all(is_tag), "{text}");
            }
            if compact {
                assert_eq!(serde_json::to_string(&value).unwrap().len(), text.len(), "{text}");
            }
        }
        assert!(complete > 10, "{complete} of 40 were not cut");
    }
}

#[test]
fn answers_are_one_of_the_choices_and_match_the_expression() {
    let bench = bench();
    let choices = ["yes", "no", "nothing", "a (b|c)/d.*\n", "日本 \"x\""].map(str::to_owned);
    let grammar = bench.compiler.compile(&GrammarSpec::Choice(choices.to_vec())).unwrap();
    let drawn: Vec<String> = (0..60).filter_map(|seed| bench.draw(&*grammar, seed)).collect();
    assert!(drawn.iter().all(|text| choices.contains(text)), "{drawn:?}");
    assert!(choices.iter().filter(|&text| drawn.contains(text)).count() >= 4, "{drawn:?}");
    let regex = GrammarSpec::Regex("[0-9]{3}-[a-f]+/(x|yz)?".into());
    let grammar = bench.compiler.compile(&regex).unwrap();
    for seed in 0..30 {
        let Some(text) = bench.draw(&*grammar, seed) else { continue };
        let (digits, rest) = text.split_once('-').unwrap();
        assert!(digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        let (letters, end) = rest.split_once('/').unwrap();
        assert!(letters.bytes().all(|byte| (b'a'..=b'f').contains(&byte)), "{text}");
        assert!(["", "x", "yz"].contains(&end), "{text}");
    }
}

/// The same language in Lark and in GBNF: sevens in nested brackets.
#[test]
fn grammars_are_lark_or_gbnf() {
    let bench = bench();
    let lark = "start: value\nvalue: SEVEN | \"[\" (value (\",\" value)*)? \"]\"\nSEVEN: /7/";
    let gbnf = "root ::= value # a comment\nvalue ::= seven | \"[\" (value (\",\" value)*)? \"]\"\n\
                seven ::= [7]{1,1}\n";
    for text in [lark, gbnf] {
        let grammar = bench.compiler.compile(&GrammarSpec::grammar(text.into())).unwrap();
        let drawn: Vec<String> = (0..60).filter_map(|seed| bench.draw(&*grammar, seed)).collect();
        assert!(drawn.len() > 10);
        for text in &drawn {
            assert!(serde_json::from_str::<Value>(text).is_ok(), "{text}");
            assert!(text.chars().all(|c| "7[],".contains(c)), "{text}");
        }
        assert!(drawn.iter().any(|text| text.contains("[[")), "{drawn:?}");
    }
}

/// llama.cpp's grammar of JSON, in the main.
const JSON_GBNF: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn the_grammar_of_json_gives_json() {
    let bench = bench();
    let grammar = bench.compiler.compile(&GrammarSpec::grammar(JSON_GBNF.into())).unwrap();
    let mut complete = 0;
    for seed in 0..60 {
        let Some(text) = bench.draw(&*grammar, seed) else { continue };
        complete += 1;
        // Text to GBNF and none to serde: half a surrogate pair, numbers beyond f64.
        if let Err(error) = serde_json::from_str::<Value>(&text) {
            let error = error.to_string();
            let is_text = error.contains("surrogate") || error.contains("number out of range");
            assert!(is_text, "{text}: {error}");
        }
    }
    assert!(complete > 10, "{complete} of 60 were not cut");
}

#[test]
fn rules_on_tokens_hold_beside_a_grammar() {
    let bench = bench();
    let grammar = bench.compiler.compile(&GrammarSpec::Regex("[a-z ]+".into())).unwrap();
    let mut rules = TokenRules::none(bench.vocab_size);
    rules.min_tokens = 20;
    let allowed: Vec<u32> =
        (0..bench.vocab_size as u32).filter(|id| id % 2 == 0 || bench.eos.contains(id)).collect();
    rules.allowed = TokenMask::none(bench.vocab_size);
    allowed.iter().for_each(|&id| rules.allowed.allow(id));
    let both = Both(grammar, Arc::new(rules));
    for seed in 0..20 {
        let Some(text) = bench.draw(&both, seed) else { continue };
        assert!(text.len() >= 20 && text.bytes().all(|b| b == b' ' || b.is_ascii_lowercase()));
    }
}

#[test]
fn what_cannot_be_served_is_named() {
    let bench = bench();
    let not = json!({"type": "object", "properties": {"a": {"not": {"type": "string"}}}});
    let error = bench.error(schema(not, false));
    assert!(
        error.starts_with("the JSON schema: ") && error.contains("/properties/a/not"),
        "{error}"
    );
    let reference = json!({"properties": {"a": {"$ref": "https://example.com/b.json"}}});
    let error = bench.error(schema(reference, false));
    assert!(error.contains("example.com"), "{error}");
    for (spec, part) in [
        (schema(json!({"type": "strin"}), false), "strin"),
        (schema(json!({"type": "string", "pattern": "("}), false), "invalid regex: unclosed"),
        (schema(json!({"type": "string", "minLength": 3, "maxLength": 2}), false), "nsatisfiable"),
        (schema(json!({"type": "string", "format": "colour"}), false), "colour"),
        (schema(json!({"type": "integer", "multipleOf": 999_983}), false), "multipleOf 999983"),
        (schema(json!(7), false), "object or boolean"),
        (GrammarSpec::Regex("a(".into()), "the regular expression: unclosed group"),
        (GrammarSpec::Choice(Vec::new()), "no choice"),
        (GrammarSpec::grammar("start: missing".into()), "missing"),
        (GrammarSpec::grammar("root ::= x".into()), "no rule 'x'"),
        (GrammarSpec::grammar("a ::= \"x\"".into()), "no rule 'root'"),
        (GrammarSpec::grammar("root ::= \"x".into()), "line 1"),
        (GrammarSpec::grammar("root ::= [z-a]".into()), "empty"),
        (GrammarSpec::grammar("root ::= \"a\"{3,2}".into()), "repetition"),
        (GrammarSpec::Regex("a".repeat(1 << 20)), "256 KiB"),
    ] {
        let error = bench.error(spec.clone());
        assert!(error.contains(part), "{spec:?}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

/// Recursion that would overflow a stack, sizes that would take all memory: refused, or compiled
/// within the limits.
#[test]
fn deep_and_large_specifications_are_bounded() {
    let bench = bench();
    let chain = |at: usize| (format!("a{at}"), json!({"$ref": format!("#/$defs/a{}", at + 1)}));
    let mut definitions: serde_json::Map<String, Value> = (0..8000).map(chain).collect();
    definitions.insert("a8000".into(), json!({"type": "null"}));
    let chain = json!({"$defs": definitions, "$ref": "#/$defs/a0"});
    let mut nested = json!({"type": "string"});
    // Deeper JSON is not parsed.
    for _ in 0..120 {
        nested = json!({"type": "array", "items": nested});
    }
    let mut doubling = json!({"type": "string"});
    for _ in 0..11 {
        doubling = json!({"anyOf": [doubling, {"type": "array", "items": doubling}]});
    }
    let many: Vec<String> = (0..17000).map(|at| format!("choice {at}")).collect();
    let deep = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
    let rule = |at: usize| format!("r{at} ::= r{}\n", at + 1);
    let rules: String = (0..12_000).map(rule).collect();
    for spec in [
        schema(chain, false),
        schema(nested, false),
        schema(doubling, false),
        schema(json!({"enum": many}), true),
        schema(json!({"$ref": "#"}), false),
        GrammarSpec::Choice(many),
        GrammarSpec::Regex(deep.clone()),
        GrammarSpec::Regex("((a{1,100}){1,100}){1,100}".into()),
        GrammarSpec::grammar(format!("start: {deep}")),
        GrammarSpec::grammar(format!("root ::= {deep}")),
        GrammarSpec::grammar(format!("root ::= r0\n{rules}r12000 ::= \"x\"")),
        GrammarSpec::grammar("start: s\ns: \"a\" | s s | s s s".into()),
    ] {
        match bench.compiler.compile(&spec) {
            Err(error) => assert!(error.to_string().len() < 1000, "{error}"),
            Ok(grammar) => drop(bench.draw(&*grammar, 1)),
        }
    }
    let error = bench.error(schema(json!({"$ref": "#"}), false));
    assert_eq!(error, "the JSON schema: it allows no answer");
}

/// A grammar whose texts have numbers of readings that grow with their square, and more.
#[test]
fn an_ambiguous_answer_fails_at_its_limit() {
    let bench = bench();
    let grammar = "start: a \"y\"\na: a a | b b | /[a-z]/\nb: a | a b | b a";
    let grammar = bench.compiler.compile(&GrammarSpec::grammar(grammar.into())).unwrap();
    let mut matcher = grammar.matcher(&bench.eos);
    let letter = bench.tokenizer.encode_text("e", false).unwrap()[0];
    let fault = (0..LIMIT).find_map(|_| {
        let mask = matcher.mask().map(|mask| assert!(mask.allows(letter)));
        mask.and_then(|()| matcher.accept(letter)).err()
    });
    let Some(ConstraintFault::Refused(why)) = fault else { panic!("{fault:?}") };
    assert!(why.contains("Too many items"), "{why}");
}

/// Each state of this expression's lexer is a set of the last 19 letters.
#[test]
fn answers_after_an_exhausted_lexer_begin_with_a_new_one() {
    let bench = bench();
    let regex = GrammarSpec::Regex("(a|b)*a(a|b){18}c".into());
    let grammar = bench.compiler.compile(&regex).unwrap();
    let letters = ["a", "b"].map(|letter| bench.tokenizer.encode_text(letter, false).unwrap()[0]);
    let mut random = Rng::new(1);
    let mut exhaust = || {
        let mut matcher = grammar.matcher(&bench.eos);
        let mut next = || matcher.accept(letters[random.below(2) as usize]);
        (0..200_000).find_map(|_| next().err())
    };
    for _ in 0..2 {
        let Some(ConstraintFault::Refused(why)) = exhaust() else { panic!("it has no limit") };
        assert!(why.contains("lexer error"), "{why}");
        let mut matcher = grammar.matcher(&bench.eos);
        let [a, b] = letters;
        [a].into_iter().chain([b; 18]).for_each(|letter| matcher.accept(letter).unwrap());
        let c = bench.tokenizer.encode_text("c", false).unwrap()[0];
        assert!(matcher.mask().unwrap().allows(c));
    }
}

#[test]
fn a_form_is_that_of_what_follows_the_reasoning() {
    let bench = bench();
    let inner = bench.compiler.compile(&GrammarSpec::Regex("yes|no".into())).unwrap();
    let encode = |text: &str| bench.tokenizer.encode_text(text, false).unwrap();
    let (open, close, yes) = (encode("o")[0], encode("c")[0], encode("yes"));
    let form =
        |open| AfterReasoning { open, close, inner: inner.clone(), vocab_size: bench.vocab_size };
    let is_allowed = |form: AfterReasoning, tokens: &[u32]| {
        let (mut matcher, mut forced) = (form.matcher(&bench.eos), Vec::new());
        tokens.iter().all(|&token| {
            matcher.force(&mut forced).unwrap();
            if !forced.is_empty() {
                return forced.remove(0) == token;
            }
            matcher.mask().unwrap().allows(token) && matcher.accept(token).is_ok()
        })
    };
    let end = bench.eos[0];
    let thought = [7, open, 300, close];
    let answer = [&yes[..], &[end]].concat();
    let begun = [&thought[..], &answer].concat();
    let opened = [&[open], &begun[..]].concat();
    let twice = [&thought[..], &thought].concat();
    for (start, tokens, expected) in [
        (None, &begun[..], true),
        (Some(open), &opened, true),
        (Some(open), &answer, true),
        (None, &[7, end], false),
        (Some(open), &[open, end], false),
        (Some(open), &thought, false),
        (None, &twice, false),
    ] {
        assert_eq!(is_allowed(form(start), tokens), expected, "{start:?} {tokens:?}");
    }
}
