//! Schemas of types that read their JSON by hand.

use std::borrow::Cow;

use utoipa::openapi::schema::{
    AnyOfBuilder, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type,
};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::number::{Count, Real, Whole};
use crate::one_or_many::OneOrMany;
use crate::past_call::PastCall;
use crate::prompt::Prompt;
use crate::response_input::{Item, ItemFields};
use crate::tools::{FlatTool, MAX_NAME, MessageTool, Tool, ToolChoice};

/// Schemas of the types that a type refers to, by name.
type Named = Vec<(String, RefOr<Schema>)>;

impl<const MIN: i64, const MAX: i64> PartialSchema for Whole<MIN, MAX> {
    fn schema() -> RefOr<Schema> {
        let whole = ObjectBuilder::new().schema_type(Type::Integer);
        // Bounds beyond 2^53 are no JSON number that all readers keep.
        let limit = |bound: i64| (bound.unsigned_abs() < 1 << 53).then_some(bound);
        whole.minimum(limit(MIN)).maximum(limit(MAX)).into()
    }
}

impl<const MIN: i64, const MAX: i64> ToSchema for Whole<MIN, MAX> {
    fn name() -> Cow<'static, str> {
        match (MIN, MAX) {
            (i64::MIN, i64::MAX) => "Integer".into(),
            (least, i64::MAX) => format!("IntegerFrom{least}").into(),
            (least, max) => format!("IntegerFrom{least}To{max}").into(),
        }
    }
}

impl PartialSchema for Real {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::Number).into()
    }
}

impl ToSchema for Real {}

impl<T: ToSchema> PartialSchema for OneOrMany<T> {
    fn schema() -> RefOr<Schema> {
        let item = match T::name() {
            name if name == String::name() => T::schema(),
            name => RefOr::Ref(Ref::from_schema_name(name)),
        };
        let text = ObjectBuilder::new().schema_type(Type::String);
        OneOfBuilder::new().item(text).item(ArrayBuilder::new().items(item)).into()
    }
}

impl<T: ToSchema> ToSchema for OneOrMany<T> {
    fn name() -> Cow<'static, str> {
        format!("OneOrMany_{}", T::name()).into()
    }

    fn schemas(schemas: &mut Named) {
        if T::name() != String::name() {
            schemas.push((T::name().into(), T::schema()));
            T::schemas(schemas);
        }
    }
}

impl<const MAX: usize> PartialSchema for Prompt<MAX> {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let ids = || ArrayBuilder::new().items(Count::schema());
        let many = |items: RefOr<Schema>| {
            ArrayBuilder::new().items(items).min_items(Some(1)).max_items(Some(MAX))
        };
        AnyOfBuilder::new()
            .item(text())
            .item(many(text().into()))
            .item(ids())
            .item(many(ids().into()))
            .into()
    }
}

impl<const MAX: usize> ToSchema for Prompt<MAX> {
    fn name() -> Cow<'static, str> {
        format!("PromptOfAtMost{MAX}").into()
    }
}

/// A JSON schema as a request gives it.
pub(crate) struct JsonSchema;

impl PartialSchema for JsonSchema {
    fn schema() -> RefOr<Schema> {
        let object = ObjectBuilder::new();
        let any = ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([true]));
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("The text of a JSON schema"));
        OneOfBuilder::new().item(object).item(any).item(text).into()
    }
}

impl ToSchema for JsonSchema {}

/// An object with the string `type`, which is `kind`.
fn typed(kind: &str) -> ObjectBuilder {
    let of_kind = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([kind]));
    ObjectBuilder::new().property("type", of_kind)
}

fn tool_name() -> ObjectBuilder {
    let name = ObjectBuilder::new().schema_type(Type::String);
    name.pattern(Some("^[A-Za-z0-9_.-]+$")).min_length(Some(1)).max_length(Some(MAX_NAME))
}

/// `object` with the name, the description and the `parameters` of a function.
fn function(object: ObjectBuilder, parameters: &str) -> ObjectBuilder {
    let nullable = [Type::Object, Type::Null].into_iter().collect::<SchemaType>();
    object
        .property("name", tool_name())
        .property("description", ObjectBuilder::new().schema_type(SchemaType::AnyValue))
        .property(parameters, ObjectBuilder::new().schema_type(nullable))
        .required("name")
}

impl PartialSchema for Tool {
    fn schema() -> RefOr<Schema> {
        typed("function")
            .property("function", function(ObjectBuilder::new(), "parameters"))
            .required("type")
            .required("function")
            .into()
    }
}

impl ToSchema for Tool {}

impl PartialSchema for FlatTool {
    fn schema() -> RefOr<Schema> {
        function(typed("function"), "parameters").required("type").into()
    }
}

impl ToSchema for FlatTool {}

impl PartialSchema for MessageTool {
    fn schema() -> RefOr<Schema> {
        function(typed("custom"), "input_schema").into()
    }
}

impl ToSchema for MessageTool {}

impl PartialSchema for ToolChoice {
    fn schema() -> RefOr<Schema> {
        let text = |names: &[&str]| {
            ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names.to_vec()))
        };
        let word = ObjectBuilder::new().property("type", text(&["auto", "none", "any"]));
        let function = ObjectBuilder::new().property("name", tool_name()).required("name");
        let named = || ObjectBuilder::new().property("type", text(&["function", "tool"]));
        AnyOfBuilder::new()
            .item(text(&["auto", "none", "required", "any"]))
            .item(word.required("type"))
            .item(named().property("name", tool_name()).required("type").required("name"))
            .item(named().property("function", function).required("type").required("function"))
            .into()
    }
}

impl ToSchema for ToolChoice {}

impl PartialSchema for PastCall {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let arguments = OneOfBuilder::new()
            .item(text().description(Some("The text of a JSON object")))
            .item(ObjectBuilder::new())
            .item(ObjectBuilder::new().schema_type(Type::Null));
        let function = ObjectBuilder::new()
            .property("name", text())
            .property("arguments", arguments)
            .required("name");
        ObjectBuilder::new()
            .property("id", ObjectBuilder::new().schema_type(SchemaType::AnyValue))
            .property("function", function)
            .required("function")
            .into()
    }
}

impl ToSchema for PastCall {}

impl PartialSchema for Item {
    fn schema() -> RefOr<Schema> {
        ItemFields::schema()
    }
}

impl ToSchema for Item {
    fn name() -> Cow<'static, str> {
        ItemFields::name()
    }

    fn schemas(schemas: &mut Named) {
        ItemFields::schemas(schemas);
    }
}
