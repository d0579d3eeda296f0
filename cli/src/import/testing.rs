//! Helpers for tests of imports.

use super::{Import, Imported};

/// Imports a configuration with optional training arguments.
pub(super) fn import(config: &str, arguments: Option<&str>) -> Result<Imported, String> {
    let import = Import::of("ds.json", config);
    let import = match arguments {
        Some(arguments) => import.training_arguments("args.json", arguments),
        None => import,
    };
    import.run().map_err(|error| error.to_string())
}

/// Returns the lines of the resulting run file, without those that the files leave open.
pub(super) fn lines(config: &str, arguments: Option<&str>) -> Vec<String> {
    let run_file = import(config, arguments).unwrap().run_file;
    let lines = run_file.lines().map(|line| line.split(" // ").next().unwrap_or_default().trim());
    lines
        .filter(|line| line.len() > 1 && !line.starts_with("//"))
        .map(|line| line.trim_end_matches(',').into())
        .collect()
}

/// Returns the resulting strategies.
pub(super) fn strategies(config: &str, arguments: Option<&str>) -> Vec<String> {
    let lines = lines(config, arguments);
    let start = lines.iter().position(|line| line == "strategies: [").map_or(lines.len(), |start| start + 1);
    lines[start..].iter().take_while(|line| *line != "]").cloned().collect()
}

/// Returns the value of a field of the run file.
pub(super) fn field(name: &str, config: &str, arguments: Option<&str>) -> String {
    let lines = lines(config, arguments);
    lines.iter().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap_or_default().into()
}

/// Returns the outcome of a field, and whether the trained model may differ.
pub(super) fn outcome(path: &str, config: &str, arguments: Option<&str>) -> (&'static str, bool) {
    let imported = import(config, arguments).unwrap();
    let row = imported.rows.iter().find(|row| row.path == path).unwrap();
    (row.outcome.name(), row.outcome.may_change_the_result())
}

/// Returns the error of the import.
pub(super) fn refused(config: &str, arguments: Option<&str>) -> String {
    import(config, arguments).unwrap_err()
}
