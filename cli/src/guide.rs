//! The Firebrick guide, page by page. The files are in `docs/`.

/// Declares a module for each page.
///
/// A page defines each of its links as a file of the repository, for those who read it there. The definitions here stand
/// before the page, and of two definitions the first counts.
macro_rules! pages {
    ([$($page:ident)*] $links:tt) => { $(pages!($page $links);)* };
    ($page:ident [$($link:literal)*]) => {
        #[doc = concat!($("[", $link, "]: ", $link, "\n",)* "\n")]
        #[doc = include_str!(concat!("../../docs/", stringify!($page), ".md"))]
        pub mod $page {}
    };
}

pages! {
    [
        run_file strategies commands causal_lm masked_lm seq2seq token_classification many_ranks checkpoints
        coming_over performance architecture
    ]
    [
        "crate::guide::checkpoints" "crate::guide::coming_over" "crate::guide::commands" "crate::guide::many_ranks"
        "crate::guide::strategies" "crate::import" "firebrick::Accumulate" "firebrick::Adapters::load" "firebrick::Amp" "firebrick::Clip"
        "firebrick::Data::fingerprint" "firebrick::Dropout" "firebrick::Freeze" "firebrick::Lora" "firebrick::Mesh"
        "firebrick::Objective::tensor_plan" "firebrick::Observer::timeline" "firebrick::Offload"
        "firebrick::Pass::after_rows" "firebrick::Pass::at_own_positions" "firebrick::Pass::before_columns" "firebrick::Pass::context_columns" "firebrick::Pass::divide_sequence"
        "firebrick::Pass::join_sequence" "firebrick::Quantize"
        "firebrick::Recompute" "firebrick::TensorPlan" "firebrick::Trained::save_weights" "firebrick::Trainer"
        "firebrick::Trainer::timeline" "firebrick::World" "firebrick::World::deadline" "firebrick::World::nccl"
        "firebrick::World::on"
        "firebrick::World::over_link" "firebrick::Zero"
        "firebrick::checkpoints" "firebrick::datasets::Collator" "firebrick::datasets::Fingerprinted"
        "firebrick::kernels" "firebrick::kernels::gelu" "firebrick::kernels::head_loss"
        "firebrick::kernels::norm_of_sum" "firebrick::memory::keep_freed" "firebrick::optim::Adafactor"
        "firebrick::optim::AdamW" "firebrick::optim::AdamW8bit" "firebrick::optim::Groups" "firebrick::optim::Lamb"
        "firebrick::schedule" "firebrick::strategies#writing-a-strategy" "firebrick::strategies::Order" "firebrick::strategies::Stage"
        "firebrick::strategies::adapted_linear"
        "firebrick_models::Gpt" "firebrick_models::Llama" "firebrick_models::decoding" "firebrick_models::pretrained::Folder::load_later"
        "firebrick_models::pretrained::load_adapters"
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Returns the links of a page: their labels, or their targets where they have no label; and the definitions of
    /// the labels.
    fn links(page: &str) -> (Vec<(String, bool)>, BTreeMap<String, String>) {
        let mut links = Vec::new();
        for (sign, end, has_label) in [("](", ')', false), ("][", ']', true)] {
            let rest = page.split(sign).skip(1);
            links.extend(rest.filter_map(|rest| Some((rest.split_once(end)?.0.to_string(), has_label))));
        }
        let definition = |line: &str| {
            let (label, target) = line.strip_prefix('[')?.split_once("]: ")?;
            Some((label.to_string(), target.to_string()))
        };
        (links, page.lines().filter_map(definition).collect())
    }

    /// Relative links lead to files, and what rustdoc resolves by path is listed above.
    #[test]
    fn no_link_of_a_page_is_dead() {
        let pages = fs::read_dir("../docs").unwrap().map(|entry| entry.unwrap().path());
        let pages = pages.chain(
            ["README", "CONTRIBUTING", "CHANGELOG"].map(|name| PathBuf::from(format!("../{name}.md"))),
        );
        let source = fs::read_to_string("src/guide.rs").unwrap();
        let mut count = 0;
        for path in pages {
            let page = fs::read_to_string(&path).unwrap();
            let (links, defined) = links(&page);
            for (link, has_label) in links {
                let target = match has_label {
                    false => &link,
                    true => defined
                        .get(&link)
                        .unwrap_or_else(|| panic!("{}: {link} is not defined", path.display())),
                };
                if has_label {
                    assert!(
                        source.contains(&format!("\"{link}\"")),
                        "{}: {link} is not in guide.rs",
                        path.display()
                    );
                }
                let file = target.split('#').next().unwrap_or_default();
                if file.starts_with("http") || file.is_empty() {
                    continue;
                }
                let folder = path.parent().unwrap_or(Path::new(""));
                assert!(folder.join(file).exists(), "{}: no file at {target}", path.display());
                count += 1;
            }
        }
        assert!(count > 50, "{count} links");
    }
}
