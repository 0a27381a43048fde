//! llama.cpp's GBNF, translated to Lark as llguidance reads it.
//!
//! A rule without recursion becomes a terminal, matched as one regular expression; recursive rules
//! stay rules. llguidance's lexer takes the longest terminal, so that a text which GBNF splits in
//! another way is not allowed: a recursive grammar can allow less than in llama.cpp, never more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::GrammarError;

/// Deepest nesting of groups.
const MAX_DEPTH: usize = 100;

/// An expression of a rule.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Literal(String),
    /// A character of the ranges, or of none.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    Any,
    Rule(String),
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// The grammar `text` in Lark's syntax, with the rule `start`.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = Parser { chars: text.chars().collect(), at: 0, depth: 0 }.rules()?;
    if !rules.contains_key("root") {
        return Err(GrammarError("the grammar has no rule 'root'".into()));
    }
    let terminals = terminals(&rules)?;
    let names: BTreeMap<&str, String> = rules
        .keys()
        .enumerate()
        .map(|(at, name)| {
            (&**name, if terminals.contains(&**name) { format!("T{at}") } else { format!("r{at}") })
        })
        .collect();
    let mut lark = format!("start: {}\n", names["root"]);
    for (name, node) in &rules {
        let _ = write!(lark, "{}: ", names[&**name]);
        write_node(&mut lark, node, &names);
        lark.push('\n');
    }
    Ok(lark)
}

/// The names of the rules that do not refer to themselves, directly or by others.
fn terminals(rules: &BTreeMap<String, Node>) -> Result<BTreeSet<&str>, GrammarError> {
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // References of each rule to others that are not known as terminals.
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, node) in rules {
        let mut references = Vec::new();
        node.references(&mut references);
        if let Some(unknown) = references.iter().find(|name| !rules.contains_key(**name)) {
            return Err(GrammarError(format!("rule '{name}': there is no rule '{unknown}'")));
        }
        open.insert(name, references.len());
        references.into_iter().for_each(|used| users.entry(used).or_default().push(name));
    }
    let mut found: Vec<&str> = Vec::new();
    found.extend(open.iter().filter(|(_, references)| **references == 0).map(|(name, _)| name));
    let mut terminals = BTreeSet::new();
    while let Some(name) = found.pop() {
        terminals.insert(name);
        for user in users.remove(name).unwrap_or_default() {
            let references = open.entry(user).or_default();
            *references -= 1;
            if *references == 0 {
                found.push(user);
            }
        }
    }
    Ok(terminals)
}

impl Node {
    fn references<'a>(&'a self, into: &mut Vec<&'a str>) {
        match self {
            Node::Rule(name) => into.push(name),
            Node::Sequence(nodes) | Node::Alternatives(nodes) => {
                nodes.iter().for_each(|node| node.references(into));
            }
            Node::Repeat(node, ..) => node.references(into),
            Node::Literal(_) | Node::Class { .. } | Node::Any => {}
        }
    }
}

fn write_node(lark: &mut String, node: &Node, names: &BTreeMap<&str, String>) {
    match node {
        Node::Literal(text) => lark.push_str(&serde_json::Value::from(&**text).to_string()),
        Node::Class { ranges, negated } => {
            let hex = |c: char| format!("\\x{{{:x}}}", u32::from(c));
            let range = |&(from, to): &(char, char)| format!("{}-{}", hex(from), hex(to));
            let ranges: String = ranges.iter().map(range).collect();
            let _ = write!(lark, "/[{}{ranges}]/", if *negated { "^" } else { "" });
        }
        Node::Any => lark.push_str("/(.|\\n)/"),
        Node::Rule(name) => lark.push_str(&names[&**name]),
        Node::Sequence(nodes) => write_list(lark, nodes, " ", names),
        Node::Alternatives(nodes) => write_list(lark, nodes, " | ", names),
        Node::Repeat(node, least, max) => {
            lark.push('(');
            write_node(lark, node, names);
            lark.push(')');
            let _ = match (least, max) {
                (0, None) => write!(lark, "*"),
                (1, None) => write!(lark, "+"),
                (0, Some(1)) => write!(lark, "?"),
                (least, None) => write!(lark, "{{{least},}}"),
                (least, Some(max)) => write!(lark, "{{{least},{max}}}"),
            };
        }
    }
}

fn write_list(lark: &mut String, nodes: &[Node], between: &str, names: &BTreeMap<&str, String>) {
    if nodes.is_empty() {
        lark.push_str("\"\"");
        return;
    }
    lark.push('(');
    for (at, node) in nodes.iter().enumerate() {
        if at > 0 {
            lark.push_str(between);
        }
        write_node(lark, node, names);
    }
    lark.push(')');
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn rules(mut self) -> Result<BTreeMap<String, Node>, GrammarError> {
        let mut rules = BTreeMap::new();
        self.skip(true);
        while self.at < self.chars.len() {
            let name = self.name()?;
            self.skip(false);
            if !self.takes("::=") {
                return Err(self.error(&format!("'::=' is missing after '{name}'")));
            }
            self.skip(true);
            let node = self.alternatives(false)?;
            if rules.insert(name.clone(), node).is_some() {
                return Err(GrammarError(format!("rule '{name}' is there twice")));
            }
            self.skip(true);
        }
        Ok(rules)
    }

    /// The alternatives up to the end of the line, or of the group that is `nested`.
    fn alternatives(&mut self, nested: bool) -> Result<Node, GrammarError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("groups are nested too deep"));
        }
        let mut all = vec![self.sequence(nested)?];
        while self.takes("|") {
            self.skip(true);
            all.push(self.sequence(nested)?);
        }
        self.depth -= 1;
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Alternatives(all) })
    }

    fn sequence(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let mut nodes = Vec::new();
        loop {
            self.skip(nested);
            let Some(node) = self.item()? else { break };
            nodes.push(self.repeated(node)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Sequence(nodes) })
    }

    fn item(&mut self) -> Result<Option<Node>, GrammarError> {
        Ok(Some(match self.peek() {
            Some('"') => Node::Literal(self.literal()?),
            Some('[') => self.class()?,
            Some('.') => {
                self.at += 1;
                Node::Any
            }
            Some('(') => {
                self.at += 1;
                self.skip(true);
                let node = self.alternatives(true)?;
                self.skip(true);
                if !self.takes(")") {
                    return Err(self.error("')' is missing"));
                }
                node
            }
            Some(c) if is_name(c) => Node::Rule(self.name()?),
            None | Some('|' | ')' | '\n' | '\r') => return Ok(None),
            Some(c) => return Err(self.error(&format!("{c:?} is not expected"))),
        }))
    }

    /// `node` with the repetitions that follow it.
    fn repeated(&mut self, mut node: Node) -> Result<Node, GrammarError> {
        loop {
            let (least, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat(Box::new(node), least, max);
        }
    }

    /// `{m}`, `{m,}` or `{m,n}`, up to the brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        let rest = &self.chars[self.at + 1..];
        let text: String = rest.iter().take_while(|&&c| c != '}').collect();
        let bounds = || {
            let (least, max) = match text.split_once(',') {
                None => (text.trim().parse().ok()?, Some(text.trim().parse().ok()?)),
                Some((least, max)) => match (least.trim(), max.trim()) {
                    (least, "") => (least.parse().ok()?, None),
                    (least, max) => (least.parse().ok()?, Some(max.parse().ok()?)),
                },
            };
            max.is_none_or(|max| least <= max).then_some((least, max))
        };
        let bounds = bounds().filter(|_| rest.len() > text.len());
        let bounds = bounds.ok_or_else(|| self.error("a repetition is {m}, {m,} or {m,n}"))?;
        self.at += 1 + text.chars().count();
        Ok(bounds)
    }

    fn literal(&mut self) -> Result<String, GrammarError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escape()?),
                None | Some('\n') => return Err(self.error("a text has no end")),
                Some(c) => text.push(c),
            }
        }
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        self.at += 1;
        let negated = self.takes("^");
        let mut ranges = Vec::new();
        while !self.takes("]") {
            let from = self.class_char()?;
            let is_range = self.peek() == Some('-') && self.chars.get(self.at + 1) != Some(&']');
            let to = match is_range {
                true => {
                    self.at += 1;
                    self.class_char()?
                }
                false => from,
            };
            if to < from {
                return Err(self.error(&format!("the range {from:?} to {to:?} is empty")));
            }
            ranges.push((from, to));
        }
        if ranges.is_empty() {
            return Err(self.error("a class without characters"));
        }
        Ok(Node::Class { ranges, negated })
    }

    fn class_char(&mut self) -> Result<char, GrammarError> {
        match self.next() {
            Some('\\') => self.escape(),
            None | Some('\n') => Err(self.error("a class has no end")),
            Some(c) => Ok(c),
        }
    }

    /// The character of an escape, after its backslash.
    fn escape(&mut self) -> Result<char, GrammarError> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err(self.error("an escape is not known")),
        };
        let end = (self.at + digits).min(self.chars.len());
        let hex: String = self.chars[self.at..end].iter().collect();
        self.at = end;
        let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
        code.and_then(char::from_u32).ok_or_else(|| self.error("an escape has no character"))
    }

    fn name(&mut self) -> Result<String, GrammarError> {
        let name: String = self.chars[self.at..].iter().take_while(|&&c| is_name(c)).collect();
        if name.is_empty() {
            return Err(self.error("the name of a rule is missing"));
        }
        self.at += name.chars().count();
        Ok(name)
    }

    /// Skips blanks and comments; ends of lines, too, if `lines`.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '#' => {
                    let rest = &self.chars[self.at..];
                    self.at += rest.iter().take_while(|&&c| c != '\n').count();
                }
                _ => return,
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    fn takes(&mut self, text: &str) -> bool {
        let is_there = text.chars().eq(self.chars[self.at..].iter().copied().take(text.len()));
        self.at += if is_there { text.len() } else { 0 };
        is_there
    }

    fn error(&self, why: &str) -> GrammarError {
        let before = &self.chars[..self.at.min(self.chars.len())];
        let line = 1 + before.iter().filter(|&&c| c == '\n').count();
        GrammarError(format!("line {line}: {why}"))
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}
