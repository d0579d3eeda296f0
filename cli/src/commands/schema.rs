//! The command `schema`: prints a schema of the run file.

use clap::Args;

use crate::console::print;
use crate::run::Registries;
use crate::schema::schema;

const EXAMPLES: &str = "\
Examples:
  firebrick schema > run.schema.json
  firebrick schema | jq '.properties.optimizer.anyOf[].properties | keys'     # the optimizers
  firebrick schema | jq '.properties.data.properties | keys'                  # the fields of `data`

It is a JSON Schema (draft 2020-12). RON and JSON have the same values: `AdamW(weight_decay: 0.1)` in a run file is
{\"AdamW\": {\"weight_decay\": 0.1}} there, and `Characters` is \"Characters\". The program asks the types that read a run
file, so the schema has what this program has: a program of your own has its own strategies, optimizers, schedules,
models and tasks too.";

/// `firebrick schema`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SchemaArgs {}

/// Runs `firebrick schema`.
pub(crate) fn print_schema(registries: &Registries) {
    print(&format!("{:#}\n", registries.reading(schema)));
}
