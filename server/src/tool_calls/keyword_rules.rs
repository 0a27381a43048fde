//! The rules of a call in Python, `f(a=1, b="x")`, whose values are those of the tool's schema.

use trail_runtime::text::{OrderedJson, OrderedMembers};

use super::forced::{Lark, quoted};
use crate::tools::Tool;

/// Members of a schema that its parts may refer to.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The expansion of a call of `tool`, the one of number `at`. Required arguments come first.
pub(super) fn keyword_arguments(lark: &mut Lark, at: usize, tool: &Tool) -> Result<String, String> {
    let schema = match tool.schema() {
        OrderedJson::Object(members) => members,
        _ => OrderedMembers::new(),
    };
    let properties = match schema.get("properties") {
        Some(OrderedJson::Object(properties)) => properties.clone(),
        _ => OrderedMembers::new(),
    };
    let required = match schema.get("required") {
        Some(OrderedJson::List(names)) => names.clone(),
        _ => Vec::new(),
    };
    let is_required = |name: &String| required.contains(&OrderedJson::Text(name.clone()));
    if let Some(name) = properties.keys().find(|name| !is_identifier(name)) {
        return Err(format!("the parameter '{name}' of '{}' is no name in Python", tool.name));
    }
    let (first, others): (Vec<_>, Vec<_>) =
        properties.iter().partition(|(name, _)| is_required(name));
    let mut arguments = Vec::new();
    for (name, value) in first.iter().chain(&others) {
        let (rule, begin) = (format!("argument_{at}_{}", arguments.len()), format!("{name}="));
        let value = with_definitions(value, &schema);
        lark.rule(&rule, &format!("{} %json {value}", quoted(&begin)));
        arguments.push(rule);
    }
    let (needed, optional) = arguments.split_at(first.len());
    let separator = quoted(", ");
    let needed = needed.join(&format!(" {separator} "));
    let list = match needed.is_empty() {
        false => {
            let further = optional.iter().map(|rule| format!(" ({separator} {rule})?"));
            format!("{needed}{}", further.collect::<String>())
        }
        true => optional_list(lark, at, optional, &separator),
    };
    Ok(format!("{} {list} {}", quoted(&format!("{}(", tool.name)), quoted(")")))
}

/// Any of the arguments `optional`, in their order: rules by the first one that is there.
fn optional_list(lark: &mut Lark, at: usize, optional: &[String], separator: &str) -> String {
    let mut firsts = Vec::new();
    for (first, rule) in optional.iter().enumerate() {
        let name = format!("arguments_{at}_{first}");
        let others = optional[first + 1..].iter().map(|rule| format!(" ({separator} {rule})?"));
        lark.rule(&name, &format!("{rule}{}", others.collect::<String>()));
        firsts.push(name);
    }
    if firsts.is_empty() { String::new() } else { format!("({})?", firsts.join(" | ")) }
}

fn is_identifier(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(is_part) && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

/// `value` with the definitions of the `schema` that it is from.
fn with_definitions(value: &OrderedJson, schema: &OrderedMembers) -> OrderedJson {
    let OrderedJson::Object(members) = value else { return value.clone() };
    let definitions = DEFINITIONS.iter().filter_map(|name| schema.get_key_value(*name));
    let definitions = definitions.map(|(name, value)| (name.clone(), value.clone()));
    OrderedJson::Object(members.clone().into_iter().chain(definitions).collect())
}
