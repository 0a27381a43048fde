//! Fields that give an answer's form: OpenAI's `response_format`, `structured_outputs` and
//! `guided_*` of vLLM, `grammar` and `json_schema` of llama.cpp, `regex` and `ebnf` of SGLang.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use trail_grammar::{GrammarSpec, MAX_SPEC_BYTES};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::openapi::JsonSchema;

/// The form of an answer, and the field that asks for it.
#[derive(Clone, Debug)]
pub(crate) struct OutputForm {
    pub spec: GrammarSpec,
    pub field: &'static str,
}

/// A JSON schema as sent: an object, or a string that holds one.
type Schema = Box<RawValue>;

#[derive(Deserialize, ToSchema)]
pub(crate) struct FormFields {
    response_format: Option<ResponseFormat>,
    structured_outputs: Option<StructuredOutputs>,
    #[schema(value_type = Option<JsonSchema>)]
    guided_json: Option<Schema>,
    guided_json_object: Option<bool>,
    guided_regex: Option<String>,
    #[schema(min_items = 1)]
    guided_choice: Option<Vec<String>>,
    guided_grammar: Option<String>,
    #[schema(value_type = Option<JsonSchema>)]
    json_schema: Option<Schema>,
    grammar: Option<String>,
    regex: Option<String>,
    ebnf: Option<String>,
}

/// OpenAI's, and llama.cpp's with the schema beside the type.
#[derive(Deserialize, ToSchema, Default)]
#[serde(expecting = "an object with a type")]
pub(crate) struct ResponseFormat {
    #[serde(rename = "type")]
    kind: FormatKind,
    json_schema: Option<NamedSchema>,
    /// Beside the schema in the Responses API.
    name: Option<String>,
    /// Not read beside the type `text`.
    #[schema(value_type = Option<Value>)]
    schema: Option<Schema>,
}

#[derive(Deserialize, ToSchema, Clone, Copy, Default)]
#[serde(rename_all = "snake_case")]
enum FormatKind {
    #[default]
    Text,
    JsonObject,
    JsonSchema,
}

/// A schema is kept to, strict or not.
#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with a schema")]
struct NamedSchema {
    /// Not read beside the type `text`.
    #[schema(value_type = Option<Value>)]
    schema: Option<Schema>,
}

/// vLLM's.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct StructuredOutputs {
    #[schema(value_type = Option<JsonSchema>)]
    json: Option<Schema>,
    json_object: Option<bool>,
    regex: Option<String>,
    #[schema(min_items = 1)]
    choice: Option<Vec<String>>,
    grammar: Option<String>,
    disable_any_whitespace: Option<bool>,
    /// Without effect, as there is one implementation.
    #[serde(rename = "disable_fallback")]
    _disable_fallback: Option<bool>,
}

impl ResponseFormat {
    /// The format as a response repeats it.
    pub(crate) fn echoed(&self) -> Value {
        match (self.kind, &self.schema) {
            (FormatKind::Text, _) => json!({ "type": "text" }),
            (FormatKind::JsonObject, _) => json!({ "type": "json_object" }),
            (FormatKind::JsonSchema, schema) => {
                // A schema that cannot be parsed is refused before any response.
                let schema = schema.as_ref().and_then(|raw| serde_json::from_str(raw.get()).ok());
                let schema: Option<Value> = schema;
                json!({ "type": "json_schema", "name": self.name, "schema": schema, "strict": true })
            }
        }
    }

    /// The form that the field `name` asks for; `None` for text.
    pub(crate) fn form(self, name: &'static str) -> Result<Option<OutputForm>, ApiError> {
        let schema = self.json_schema.and_then(|named| named.schema).or(self.schema);
        let spec = match (self.kind, schema) {
            (FormatKind::Text, _) => return Ok(None),
            (FormatKind::JsonObject, None) => GrammarSpec::json_object(),
            (FormatKind::JsonObject | FormatKind::JsonSchema, Some(schema)) => {
                of_schema(name, &schema, false)?
            }
            (FormatKind::JsonSchema, None) => {
                let message = format!("'{name}' of type json_schema needs a 'schema'");
                return Err(ApiError::invalid_field(name, message));
            }
        };
        Ok(Some(OutputForm { spec, field: name }))
    }
}

impl FormFields {
    /// The form of the answer, if any field asks for one.
    pub(crate) fn form(self) -> Result<Option<OutputForm>, ApiError> {
        let mut forms = Forms(None);
        if let Some(format) = self.response_format
            && let Some(form) = format.form("response_format")?
        {
            forms.add(form.field, Some(form.spec))?;
        }
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        let object = |is_asked: Option<bool>| {
            is_asked.filter(|&is_asked| is_asked).map(|_| GrammarSpec::json_object())
        };
        let schema = |name, schema: Option<Schema>, compact| {
            schema.map(|schema| of_schema(name, &schema, compact)).transpose()
        };
        if let Some(outputs) = self.structured_outputs {
            const NAME: &str = "structured_outputs";
            let compact = outputs.disable_any_whitespace.unwrap_or(false);
            forms.add(NAME, schema(NAME, outputs.json, compact)?)?;
            forms.add(NAME, object(outputs.json_object))?;
            forms.add(NAME, outputs.choice.map(GrammarSpec::Choice))?;
            forms.add(NAME, text(outputs.regex).map(GrammarSpec::Regex))?;
            forms.add(NAME, text(outputs.grammar).map(GrammarSpec::grammar))?;
        }
        forms.add("guided_json", schema("guided_json", self.guided_json, false)?)?;
        forms.add("json_schema", schema("json_schema", self.json_schema, false)?)?;
        forms.add("guided_json_object", object(self.guided_json_object))?;
        forms.add("guided_choice", self.guided_choice.map(GrammarSpec::Choice))?;
        forms.add("guided_regex", text(self.guided_regex).map(GrammarSpec::Regex))?;
        forms.add("regex", text(self.regex).map(GrammarSpec::Regex))?;
        forms.add("guided_grammar", text(self.guided_grammar).map(GrammarSpec::grammar))?;
        forms.add("grammar", text(self.grammar).map(GrammarSpec::grammar))?;
        forms.add("ebnf", text(self.ebnf).map(GrammarSpec::grammar))?;
        Ok(forms.0)
    }
}

/// At most one form; the same one may be in several fields, as clients of several versions of vLLM
/// send it.
struct Forms(Option<OutputForm>);

impl Forms {
    fn add(&mut self, field: &'static str, spec: Option<GrammarSpec>) -> Result<(), ApiError> {
        let Some(spec) = spec else { return Ok(()) };
        match &self.0 {
            Some(other) if other.spec != spec => Err(excluding(other.field, field)),
            Some(_) => Ok(()),
            None => {
                self.0 = Some(OutputForm { spec, field });
                Ok(())
            }
        }
    }
}

/// The refusal of two forms of an answer, in the fields `first` and `second`.
pub(crate) fn excluding(first: &str, second: &'static str) -> ApiError {
    let message = match first == second {
        true => format!("'{second}' has two forms of the answer: leave one out"),
        false => format!("'{first}' and '{second}' exclude each other"),
    };
    ApiError::invalid_field(second, message)
}

/// The schema that is sent as `field`.
pub(crate) fn of_schema(
    field: &'static str,
    raw: &RawValue,
    compact: bool,
) -> Result<GrammarSpec, ApiError> {
    let fault = |why: &str| ApiError::invalid_field(field, format!("'{field}': {why}"));
    // A larger one is not even parsed.
    if raw.get().len() > MAX_SPEC_BYTES {
        let limit = MAX_SPEC_BYTES >> 10;
        return Err(fault(&format!("the schema is larger than {limit} KiB: make it smaller")));
    }
    let parse = |text: &str| serde_json::from_str::<Value>(text);
    let schema = match parse(raw.get()) {
        Ok(Value::String(text)) => parse(&text),
        schema => schema,
    };
    match schema {
        Ok(schema @ (Value::Object(_) | Value::Bool(true))) => {
            Ok(GrammarSpec::JsonSchema { schema, compact })
        }
        Ok(_) => Err(fault("the schema must be an object")),
        Err(error) => Err(fault(&format!("the schema is not JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(body: &str) -> Result<Option<OutputForm>, String> {
        let fields: FormFields = serde_json::from_str(body).map_err(|error| error.to_string())?;
        fields.form().map_err(|error| error.message().to_owned())
    }

    fn spec(body: &str) -> GrammarSpec {
        form(body).unwrap().unwrap_or_else(|| panic!("no form in {body}")).spec
    }

    #[test]
    fn each_field_gives_a_form() {
        let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
        let of_schema = |compact| GrammarSpec::JsonSchema { schema: schema.clone(), compact };
        let text = schema.to_string();
        let quoted = json!(text).to_string();
        for body in [
            format!(
                r#"{{"response_format": {{"type": "json_schema", "json_schema": {{"name": "x",
                "strict": true, "schema": {text}}}}}}}"#
            ),
            format!(r#"{{"response_format": {{"type": "json_object", "schema": {text}}}}}"#),
            format!(r#"{{"guided_json": {text}}}"#),
            format!(r#"{{"guided_json": {quoted}, "grammar": "", "regex": null}}"#),
            format!(r#"{{"json_schema": {text}, "guided_json_object": false}}"#),
            format!(r#"{{"structured_outputs": {{"json": {quoted}}}}}"#),
        ] {
            assert_eq!(spec(&body), of_schema(false), "{body}");
        }
        let compact = r#", "disable_any_whitespace": true}}"#;
        let body = format!(r#"{{"structured_outputs": {{"json": {text}{compact}"#);
        assert_eq!(spec(&body), of_schema(true));
        let object = GrammarSpec::json_object();
        assert_eq!(spec(r#"{"response_format": {"type": "json_object"}}"#), object);
        assert_eq!(spec(r#"{"guided_json_object": true}"#), object);
        let choice = GrammarSpec::Choice(vec!["a".into(), "b".into()]);
        assert_eq!(spec(r#"{"guided_choice": ["a", "b"]}"#), choice);
        assert_eq!(spec(r#"{"structured_outputs": {"choice": ["a", "b"]}}"#), choice);
        for field in ["regex", "guided_regex"] {
            assert_eq!(spec(&format!(r#"{{"{field}": "x+"}}"#)), GrammarSpec::Regex("x+".into()));
        }
        for field in ["grammar", "guided_grammar", "ebnf"] {
            let grammar = GrammarSpec::grammar("root ::= x".into());
            assert_eq!(spec(&format!(r#"{{"{field}": "root ::= x"}}"#)), grammar);
        }
        let twice = r#"{"guided_grammar": "start: /a/", "structured_outputs": {"grammar":
            "start: /a/"}}"#;
        assert_eq!(spec(twice), GrammarSpec::grammar("start: /a/".into()));
        for nothing in ["{}", r#"{"response_format": {"type": "text"}}"#] {
            assert!(form(nothing).unwrap().is_none());
        }
    }

    #[test]
    fn malformed_and_double_forms_are_refused() {
        let large = format!(r#"{{"guided_json": {{"const": "{}"}}}}"#, "x".repeat(MAX_SPEC_BYTES));
        for (body, part) in [
            (r#"{"response_format": {"type": "json_schema"}}"#, "needs a 'schema'"),
            (r#"{"response_format": {"type": "grammar"}}"#, "grammar"),
            (r#"{"guided_json": 7}"#, "must be an object"),
            (r#"{"guided_json": "{"}"#, "not JSON"),
            (r#"{"guided_json": {}, "regex": "a"}"#, "'guided_json' and 'regex' exclude"),
            (r#"{"structured_outputs": {"regex": "a", "choice": ["b"]}}"#, "two forms"),
            (r#"{"structured_outputs": {"structural_tag": {}}}"#, "structural_tag"),
            (&*large, "256 KiB"),
        ] {
            let error = form(body).err().unwrap_or_else(|| panic!("{body} is taken"));
            assert!(error.contains(part), "{body}: {error}");
        }
    }
}
