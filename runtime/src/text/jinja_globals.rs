//! Functions of Jinja that minijinja has not, or has otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, functions};

pub(super) fn install(environment: &mut Environment) {
    environment.add_function("cycler", Cycler::value);
    environment.add_function("dict", dict);
    environment.add_function("joiner", Joiner::value);
}

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// A dict, also of pairs.
fn dict(value: Option<Value>, members: Kwargs) -> Result<Value, Error> {
    let is_list = value.as_ref().is_some_and(|value| value.kind() != ValueKind::Map);
    let Some(pairs) = value.as_ref().filter(|value| is_list && !value.is_undefined()) else {
        return functions::dict(value, members);
    };
    let pair = |pair: Value| -> Result<(Value, Value), Error> {
        match pair.len() {
            Some(2) => Ok((pair.get_item_by_index(0)?, pair.get_item_by_index(1)?)),
            _ => Err(invalid("dict: an item is no pair")),
        }
    };
    let pairs = pairs.try_iter()?.map(pair).collect::<Result<Vec<_>, _>>()?;
    functions::dict(Some(Value::from_pairs(pairs)), members)
}

/// `cycler`: its items in turn, again and again.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn value(items: Rest<Value>) -> Result<Value, Error> {
        match items.is_empty() {
            true => Err(invalid("cycler: at least one item has to be provided")),
            false => Ok(Value::from_object(Cycler { items: items.to_vec(), at: 0.into() })),
        }
    }

    fn current(&self) -> Value {
        self.items[self.at.load(Ordering::Relaxed) % self.items.len()].clone()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State,
        name: &str,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        match (name, arguments) {
            ("next", []) => {
                let current = self.current();
                self.at.fetch_add(1, Ordering::Relaxed);
                Ok(current)
            }
            ("reset", []) => {
                self.at.store(0, Ordering::Relaxed);
                Ok(().into())
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// `joiner`: nothing at the first call, then the separator.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    is_used: AtomicBool,
}

impl Joiner {
    fn value(separator: Option<Value>) -> Value {
        let separator = separator.unwrap_or_else(|| ", ".into());
        Value::from_object(Joiner { separator, is_used: false.into() })
    }
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State, _: &[Value]) -> Result<Value, Error> {
        let is_first = !self.is_used.swap(true, Ordering::Relaxed);
        let text = if is_first { "".into() } else { self.separator.clone() };
        Ok(text)
    }
}
