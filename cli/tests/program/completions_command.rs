//! `firebrick completions` as users run it.

use assert_cmd::Command;
use predicates::str::contains;

fn completions(shell: &str) -> Command {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.args(["completions", shell]);
    command
}

#[test]
fn each_shell_gets_a_script_with_the_commands_and_their_options() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = completions(shell).assert().success().get_output().stdout.clone();
        let script = String::from_utf8(script).unwrap();
        for word in ["firebrick", "train", "consolidate", "find-batch", "allow-changes"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    completions("tcsh").assert().code(2).stderr(contains("bash, elvish, fish, powershell, zsh"));
}

/// Bash itself completes a command and an option from the script.
#[cfg(unix)]
#[test]
fn bash_completes_what_is_typed() {
    let script = completions("bash").assert().success().get_output().stdout.clone();
    let ask = |words: &str, at: usize| {
        let asks = format!(
            "{}\nCOMP_WORDS=({words})\nCOMP_CWORD={at}\n_firebrick firebrick \"${{COMP_WORDS[{at}]}}\" \
             \"${{COMP_WORDS[{}]}}\"\necho \"${{COMPREPLY[@]}}\"",
            String::from_utf8_lossy(&script),
            at - 1
        );
        Command::new("bash").args(["-c", &asks]).assert()
    };
    ask("firebrick pla", 1).success().stdout("plan\n");
    ask("firebrick plan --find", 2).success().stdout("--find-batch\n");
    ask("firebrick cache cl", 2).success().stdout("clear\n");
}
