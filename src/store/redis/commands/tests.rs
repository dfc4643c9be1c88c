//! The parsing of replies to commands of operators.

use super::*;

#[test]
fn a_page_is_a_cursor_and_names() {
    let text = |text: &str| Value::BulkString(text.into());
    let page = |cursor, names: Vec<Value>| read(Value::Array(vec![cursor, Value::Array(names)]));
    let names = Some((17, vec![b"a".to_vec(), b"b".to_vec()]));
    assert_eq!(page(text("17"), vec![text("a"), text("b")]), names);
    assert_eq!(page(text("0"), Vec::new()), Some((0, Vec::new())));
    assert_eq!(page(text("x"), Vec::new()), None);
    assert_eq!(page(Value::Int(0), Vec::new()), None);
    assert_eq!(page(text("0"), vec![Value::Nil]), None);
    for none in [Value::Nil, Value::Array(vec![text("0")])] {
        assert_eq!(read(none), None);
    }
}

#[test]
fn a_page_that_fails_leaves_the_master_to_its_beginning() {
    let mut position = Position {
        done: vec![1],
        at: Some((2, 17)),
    };
    let taken = position.take();
    assert_eq!((taken.done, taken.at), (vec![1], Some((2, 17))));
    assert_eq!((position.done, position.at), (vec![1], None));
}

#[test]
fn libraries_have_names() {
    let text = |text: &str| Value::BulkString(text.into());
    let library = |field: &str| {
        [
            text(field),
            text("td_1"),
            text("functions"),
            Value::Array(Vec::new()),
        ]
    };
    let list = |library: Value| names(Value::Array(vec![library]));
    assert_eq!(
        list(Value::Array(library("library_name").into())),
        Some(vec!["td_1".to_owned()])
    );
    let [field, name, ..] = library("library_name");
    assert_eq!(
        list(Value::Map(vec![(field, name)])),
        Some(vec!["td_1".to_owned()])
    );
    assert_eq!(list(Value::Array(library("name").into())), None);
    assert_eq!((names(Value::Int(1)), list(Value::Nil)), (None, None));
}
