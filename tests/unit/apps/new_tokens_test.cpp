// Runs with --add-tokens: tokenizer, model, restarts and exports have the new tokens.
#include "tests/support/finetune_rig.hpp"

#include "lib/models/config/model_config.hpp"
#include "lib/tokenizers/files/open_tokenizer.hpp"
#include "lib/training/evaluate/subject.hpp"

using namespace fsdp;
using test::finetune;
using test::has_all;
using test::words;

namespace {

std::string recipes() { return FSDP_FIXTURE_DIR "/recipes/peft/"; }

struct Growing : test::Runs {
  Growing() {
    std::ofstream(dir / "new.json") << R"([{"content": "<|think|>", "special": true}, "<|tool|>", "<|eot_id|>"])";
    std::ofstream texts(dir / "texts.jsonl");
    for (int i = 0; i < 8; ++i) texts << R"({"text": "The answer <|tool|> is one of many )" << i << "\"}\n";
  }

  test::FinetuneOutcome run(const std::string& name, const std::string& options) {
    return finetune(
        dir.path(), 2,
        words("--device cpu --no-tensorboard --total-batch-size 2 --batch-size 1 --lr 1e-2 --max-steps 2 --tokenizer " +
              recipes() + "tokenizer --add-tokens " + (dir / "new.json").string() + " --train-data " +
              (dir / "texts.jsonl").string() + " --out-dir " + dir.path().string() + " --run-name " + name + " " +
              options));
  }
  test::FinetuneOutcome start(const std::string& name, const std::string& options) {
    const auto outcome = run(name, "--save-final-hf " + (dir / (name + "-hf")).string() + " " + options);
    INFO(outcome.error);
    CHECK(outcome.code == ExitCode::ok);
    return outcome;
  }
  std::set<std::string> names_in(const std::string& folder) const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir / folder))
      names.insert(entry.path().filename().string());
    return names;
  }
};

}  // namespace

TEST_SUITE("jobs/new tokens") {
  TEST_CASE("of a whole model and beside adapters") {
    const std::string model = "--model " + recipes() + "bases/tied ";
    for (const auto& [name, options, tied] :
         {std::tuple{"whole", "", true}, std::tuple{"rows", "--lora-rank 2 --trainable-tokens new", true},
          std::tuple{"saved", "--lora-rank 2 --modules-to-save lm_head,embed_tokens", false},
          std::tuple{"frozen", "--lora-rank 2 --lora-targets q_proj,lm_head --new-rows zero", false}}) {
      CAPTURE(name);
      Growing runs;
      const auto outcome = runs.start(name, model + "--pad-vocab-to 8 " + options);
      CHECK(has_all(outcome.log, {"2 added from id 272 on   280 rows, before 272"}));
      const auto hf = runs.dir / (std::string(name) + "-hf");
      const auto config = read_model_config(hf);
      CHECK(config.vocab_size == 280);
      CHECK(config.tie_word_embeddings == tied);
      const auto tokenizer = open_tokenizer(hf);
      CHECK(tokenizer->vocab_size() == 274);
      CHECK(tokenizer->named_id("<|think|>") == 272);
      CHECK(tokenizer->encode("a<|tool|>") == open_tokenizer(runs.dir / name / "tokenizer")->encode("a<|tool|>"));
      const auto again = runs.resume(name, "--max-steps 3 --batch-size 1", 2);
      INFO(again.error);
      CHECK(again.code == ExitCode::ok);
    }
  }

  TEST_CASE("an adapter's tokenizer goes with it through every door") {
    Growing runs;
    const auto base = runs.dir / "base", elsewhere = runs.dir / "elsewhere";
    std::filesystem::copy(recipes() + "bases/tied", base);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy(recipes() + "tokenizer/" + name, base / name);
    runs.start("run", "--model " + base.string() + " --lora-rank 2 --trainable-tokens new");
    const auto run = runs.dir / "run", adapter = run / "adapter";
    CHECK(open_tokenizer(adapter)->named_id("<|tool|>"));
    CHECK_FALSE(std::filesystem::exists(adapter / "config.json"));
    // As a folder of peft with marks of its own, which moves away from its run.
    std::filesystem::copy(adapter, elsewhere);
    auto settings = nlohmann::json::parse(std::ifstream(elsewhere / "tokenizer_config.json"));
    settings["eos_token"] = "<|eot_id|>";
    settings["chat_template"] = "{{ messages[0].content }}";
    std::ofstream(elsewhere / "tokenizer_config.json") << settings;
    const auto old_ends = nlohmann::json::parse(std::ifstream(base / "config.json")).value("eos_token_id", 0);
    std::filesystem::rename(run, runs.dir / "moved");
    const auto moved = runs.dir / "moved";
    std::filesystem::remove(moved / "adapter/tokenizer.json");  // as older runs are
    for (const auto& from : {moved / "adapter", moved, moved / "checkpoints/latest", elsewhere}) {
      CAPTURE(from);
      const auto subject_of = [&] {
        auto subject = open_subject(base, "", "");
        add_adapter(subject, from, "");
        open_subject_tokenizer(subject, "a test");
        return subject;
      }();
      CHECK(subject_of.tokenizer->named_id("<|tool|>") == 273);
      ConvertOptions options;
      options.paths = {base, runs.dir / "merged"};
      options.to = "hf";
      options.overwrite = true;
      options.input.merge_adapter = from;
      options.job.json = true;
      nlohmann::json report;
      test::CapturedStderr captured(runs.dir / "stderr.txt");
      CHECK(run_convert_job(*make_single_group(), options, Logger(0, LogLevel::warning, words_of_advice), report) ==
            ExitCode::ok);
      CHECK(captured.text().empty());
      const auto merged = open_tokenizer(runs.dir / "merged");
      CHECK(merged->named_id("<|tool|>") == 273);
      CHECK(read_model_config(runs.dir / "merged").vocab_size == 274);
      if (from != elsewhere) continue;
      CHECK(named_special_tokens(runs.dir / "merged").at("eos_token") == "<|eot_id|>");
      const auto config = nlohmann::json::parse(std::ifstream(runs.dir / "merged/config.json"));
      CHECK(config["eos_token_id"] == nlohmann::json{*merged->eos_id(), old_ends});
    }
    // Training on from the adapter writes its tokenizer, too.
    const auto hf = runs.dir / "trained-hf";
    const auto outcome = finetune(
        runs.dir.path(), 1,
        words("--device cpu --no-tensorboard --batch-size 1 --max-steps 1 --model " + base.string() + " --adapter " +
              elsewhere.string() + " --train-data " + (runs.dir / "texts.jsonl").string() + " --out-dir " +
              runs.dir.path().string() + " --run-name trained --save-final-hf " + hf.string()));
    INFO(outcome.error);
    REQUIRE(outcome.code == ExitCode::ok);
    CHECK(named_special_tokens(hf).at("eos_token") == "<|eot_id|>");
    CHECK(named_special_tokens(runs.dir / "trained/adapter").at("eos_token") == "<|eot_id|>");
    // Rows for tokens that no tokenizer has are told.
    std::filesystem::remove(elsewhere / "tokenizer.json");
    test::CapturedStderr captured(runs.dir / "stderr.txt");
    ConvertOptions options;
    options.paths = {base, runs.dir / "merged"};
    options.to = "hf";
    options.overwrite = options.job.json = true;
    options.input.merge_adapter = elsewhere;
    nlohmann::json report;
    run_convert_job(*make_single_group(), options, Logger(0, LogLevel::warning, words_of_advice), report);
    CHECK(has_all(captured.text(), {"has rows for 274 tokens", "for 272", "--config-from DIR"}));
  }

  TEST_CASE("a job that is refused leaves no tokenizer and changes no older one; a new run moves that aside") {
    Growing runs;
    const std::string model = "--model " + recipes() + "bases/tied ";
    const auto refused = runs.run("refused", model + "--sample-chat");
    CHECK(refused.code == ExitCode::usage);
    CHECK(has_all(refused.error, {"--sample-chat"}));
    CHECK_FALSE(std::filesystem::exists(runs.dir / "refused"));
    CHECK(runs.run("dry", model + "--dry-run").code == ExitCode::ok);
    CHECK_FALSE(std::filesystem::exists(runs.dir / "dry"));

    runs.start("run", model);
    const auto before = runs.names_in("run");
    CHECK_FALSE(before.contains(".tokenizer"));
    std::ofstream(runs.dir / "new.json") << R"(["<|other|>"])";
    CHECK(runs.run("run", model + "--sample-chat").code == ExitCode::usage);
    CHECK(runs.names_in("run") == before);
    CHECK(open_tokenizer(runs.dir / "run/tokenizer")->named_id("<|tool|>"));
    runs.start("run", model + "--overwrite");
    CHECK(open_tokenizer(runs.dir / "run/tokenizer")->named_id("<|other|>"));
    CHECK(open_tokenizer(runs.dir / "run/previous-1/tokenizer")->named_id("<|tool|>"));
    // The moved run goes on with its own tokenizer.
    const auto latest = (runs.dir / "run/previous-1/checkpoints/latest").string();
    const auto moved = finetune(
        runs.dir.path(), 2,
        words("--device cpu --no-tensorboard --max-steps 3 --batch-size 1 --restart " + latest +
              " --sample-prompt <|tool|> --eval-every 3 --out-dir " + runs.dir.path().string() + " --run-name moved"));
    INFO(moved.error);
    CHECK(moved.code == ExitCode::ok);
  }
}
