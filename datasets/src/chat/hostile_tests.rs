//! Templates that would end the process, or take all memory or hours, are errors that name the template.

use std::time::{Duration, Instant};

use super::*;
use crate::Message;

fn refused(source: &str) -> String {
    let started = Instant::now();
    let messages = vec![Message::new("user", "Is it?"), Message::new("assistant", "Yes.")];
    let conversation = Conversation { messages, ..Conversation::default() };
    let rendered =
        ChatTemplate::new("hostile.jinja", source).and_then(|template| template.render(&conversation, false));
    let rendered = rendered.map(|chat| chat.text.len()).map_err(|error| error.to_string());
    let error = rendered.expect_err(source);
    assert!(error.starts_with("hostile.jinja"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(40), "{source}: {:?}", started.elapsed());
    error
}

/// Each once overflowed the stack.
#[test]
fn values_within_themselves_are_refused() {
    for source in [
        "{% set ns=namespace() %}{% set ns.x=ns %}{{ ns }}",
        "{% set ns=namespace() %}{% set ns.x=ns %}{{ ns|tojson }}",
        "{% set ns=namespace(d={}) %}{% set ns.d = {'a':ns} %}{% set ns.x=ns %}{{ ns|tojson }}",
        "{% set ns=namespace() %}{% set ns.x=[[ns]] %}{{ ns ~ '' }}",
        "{% set ns=namespace() %}{% for a in [ns] %}{% set ns.x=loop %}{% endfor %}{{ ns == namespace(x=ns) }}",
        "{% set ns=namespace() %}{% set ns.x=cycler([ns]) %}{{ ns }}",
    ] {
        assert!(refused(source).contains("cannot hold a namespace"), "{source}");
    }
    let deep = "{% set ns=namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l=[ns.l] %}{% endfor %}";
    for end in ["{{ ns.l|tojson }}", "{{ ns.l }}", "{{ ns.l == [ns.l] }}", "{{ ns.l|string }}", ""] {
        assert!(refused(&format!("{deep}{end}")).contains("nested more than 200 deep"), "{end}");
    }
}

/// Each once took more than 3 GB.
#[test]
fn values_that_grow_are_refused() {
    let repeated = |step: &str, end: &str| {
        format!("{{% set ns = namespace(x=[1], s='a') %}}{{% for i in range(60) %}}{step}{{% endfor %}}{end}")
    };
    for source in [
        &*repeated("{% set ns.s = ns.s ~ ns.s %}", "{{ ns.s }}"),
        &*repeated("{% set ns.s = ns.s + ns.s %}", "{{ ns.s }}"),
        &*repeated("{% set ns.s = [ns.s, ns.s]|join %}", "{{ ns.s }}"),
        &*repeated("{% set ns.s = ''.join([ns.s, ns.s]) %}", "{{ ns.s }}"),
        &*repeated("{% set ns.s = '%s%s' % (ns.s, ns.s) %}", "{{ ns.s }}"),
        &*repeated("{% set ns.s = ns.s|replace('a', 'aa') %}", "{{ ns.s }}"),
        &*repeated("{% set ns.x = ns.x + ns.x %}", "{{ ns.x|length }}"),
        // 2^60 items in 60 lists.
        &*repeated("{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x }}"),
        &*repeated("{% set ns.x = {'a': ns.x, 'b': ns.x} %}", "{{ ns.x|tojson }}"),
        "{% macro f(x, n) %}{% if n %}{{ f([x, x], n - 1) }}{% else %}{{ x|upper }}{% endif %}{% endmacro %}{{ f([1], 40) }}",
        "{% for x in [[1]] recursive %}{% if loop.depth < 40 %}{{ loop([[x, x]]) }}{% else %}{{ x }}{% endif %}{% endfor %}",
        "{{ '{:>9999999999}'.format('x') }}",
        "{{ '%9999999999s' % 'x' }}",
        "{{ 'x'.rjust(9999999999) }}",
        "{{ 'x'.zfill(9999999999) }}",
        "{{ 'a\nb'|indent(10**9) }}",
        "{{ 'a' * 10**9 }}",
        "{{ ('a' * 10**8).split('a')|length }}",
        "{{ ('a' * 10**7).split('')|length }}",
        "{{ ([1] * 10**9)|list|length }}",
        "{{ ([1] * 10**8)|tojson }}",
        "{{ ([1] * 10**8).index(2) }}",
        // A map that looks in others.
        "{% macro f(x, n) %}{% if n %}{{ f(x|chain({'a': x, 'b': x}), n - 1) }}{% else %}{{ x == x|chain({}) }}{% endif %}{% endmacro %}{{ f({}, 40) }}",
        "{% for i in range(10**5) %}{{ messages|tojson }}{% endfor %}",
    ] {
        refused(source);
    }
}

#[test]
fn what_takes_long_is_refused() {
    for source in [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        // The engine panics here.
        "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}",
    ] {
        refused(source);
    }
}

/// Steps do not count the items of nested lists that are compared.
#[test]
fn time_is_bounded_where_steps_do_not_count() {
    let source = "{% set a = namespace(x=[1], y=[1]) %}{% for i in range(8) %}{% set a.x = [a.x, a.x] %}\
        {% set a.y = [a.y, a.y] %}{% endfor %}{% for i in range(10000) %}{% for j in range(10000) %}\
        {% if a.x != a.y %}x{% endif %}{% endfor %}{% endfor %}";
    assert_eq!(within(source, 300).unwrap_err(), "it takes longer than 0.3 s");
}

/// Few steps, too, may take long: each of these compares lists of 8,192 items, and all of them are within the first try.
#[test]
fn time_is_bounded_however_few_steps_there_are() {
    let source = "{% set a = namespace(x=[1], y=[1]) %}{% for i in range(13) %}{% set a.x = a.x + a.x %}\
        {% set a.y = a.y + a.y %}{% endfor %}{% for i in range(5000) %}{% if a.x != a.y %}x{% endif %}{% endfor %}";
    assert_eq!(within(source, 1).unwrap_err(), "it takes longer than 0.001 s");
    // The thread that renders next is another one.
    assert_eq!(within("{{ 1 + 1 }}", 10_000).unwrap(), "2");
    assert_eq!(within(&source.replace("5000", "9"), 10_000).unwrap(), "");
}

/// Renders without values for at most so many milliseconds.
fn within(source: &str, longest: u64) -> Result<String, String> {
    let environment = ChatTemplate::new("hostile.jinja", source).unwrap().environment;
    let rendering = Rendering { environment, name: DEFAULT, values: Vec::new(), size: 0 };
    rendering.within(Duration::from_millis(longest)).map_err(|error| told(&error).1)
}

#[test]
fn sources_are_bounded() {
    for (source, expected) in [
        ("{% if a %}".repeat(100_000), "nested more than 64 deep"),
        (format!("{{{{ {}1{} }}}}", "[".repeat(400_000), "]".repeat(400_000)), "nested more than 64 deep"),
        (format!("{{{{ 1{} }}}}", "+1".repeat(400_000)), "more than 500 operators"),
        ("a".repeat(2_000_000), "it has 2000000 bytes"),
    ] {
        assert!(refused(&source).contains(expected));
    }
}

/// What a long conversation needs is within the bounds, which grow with it.
#[test]
fn long_conversations_are_rendered() {
    let source = "{% set ns = namespace(all=[], text='') %}{% for m in messages %}{% set ns.all = ns.all + [m] %}\
        {% set ns.text = ns.text ~ m.role ~ m.content %}{% endfor %}{{ ns.all|length }} {{ ns.text }}";
    let messages = (0..200).map(|_| Message::new("user", "long ".repeat(2_000))).collect();
    let conversation = Conversation { messages, ..Conversation::default() };
    let chat = ChatTemplate::new("ours", source).unwrap().render(&conversation, false).unwrap();
    assert_eq!(chat.text.len(), "200 ".len() + 200 * ("user".len() + 10_000));
    assert!(chat.text.starts_with("200 userlong "));
}
