// Repository names, addresses, settings and selections.
#include <doctest/doctest.h>

#include <map>

#include "lib/base/types/error.hpp"
#include "lib/hub/file_download.hpp"
#include "lib/hub/http_client.hpp"
#include "lib/hub/hub_failure.hpp"
#include "lib/hub/hub_settings.hpp"
#include "lib/hub/repo.hpp"
#include "lib/hub/snapshot_store.hpp"
#include "tests/unit/hub/hub_test_support.hpp"

using namespace fsdp;

namespace {

RemoteFile file(const std::string& path) { return {path, 1, std::string(40, 'a'), std::nullopt, std::nullopt}; }

std::vector<std::string> selected(const std::vector<std::string>& paths, const Selection& selection) {
  std::vector<RemoteFile> files;
  for (const auto& path : paths) files.push_back(file(path));
  std::vector<std::string> names;
  for (const auto& one : select_files(files, selection).files) names.push_back(one.path);
  return names;
}

HubSettings settings_of(const std::map<std::string, std::string>& variables) {
  return hub_settings([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

}  // namespace

TEST_SUITE("hub/names") {
  TEST_CASE("RepoId: names and folders") {
    CHECK(RepoId::parse(RepoType::model, "codellama/CodeLlama-7b-hf").folder() == "models--codellama--CodeLlama-7b-hf");
    CHECK(RepoId::parse(RepoType::dataset, "laion/strategic_game_chess").folder() ==
          "datasets--laion--strategic_game_chess");
    CHECK(RepoId::parse(RepoType::model, "gpt2").folder() == "models--gpt2");
    for (const char* wrong :
         {"", "/", "a/", "/a", "a/b/c", "..", "../a", "a/..", "a b", "a/b\n", "-x/y", "a/.b", "a%2fb"}) {
      CAPTURE(wrong);
      CHECK_THROWS_AS(RepoId::parse(RepoType::model, wrong), UsageError);
    }
  }

  TEST_CASE("check_remote_file: rejects paths that lead outside of the folder") {
    for (const char* right : {"a", "a/b.c", "..a/b..", "a b/ü"}) CHECK_NOTHROW(check_remote_file(file(right)));
    for (const char* wrong : {"", "/a", "../a", "a/../b", "a/..", ".", "a/./b", "a/", "a\nb", "a\x7f"}) {
      CAPTURE(wrong);
      CHECK_THROWS_AS(check_remote_file(file(wrong)), FormatError);
    }
    auto no_hash = file("a");
    no_hash.blob_id = "../../x";
    CHECK_THROWS_AS(check_remote_file(no_hash), FormatError);
  }

  TEST_CASE("tree json: round trip; other JSON is rejected") {
    std::vector<RemoteFile> files{file("a"), {"b/c", 1ull << 40, std::string(40, 'b'), std::string(64, 'c'), "xet"}};
    const auto text = tree_to_json(files);
    const auto back = tree_from_json(text);
    REQUIRE(back);
    REQUIRE(back->size() == 2);
    CHECK((*back)[1].path == "b/c");
    CHECK((*back)[1].size_bytes == 1ull << 40);
    CHECK((*back)[1].hash() == std::string(64, 'c'));
    CHECK((*back)[1].xet_hash == "xet");
    CHECK((*back)[0].hash() == std::string(40, 'a'));
    for (
        const char* wrong :
        {"", "[]", "{}", R"({"format_version":2,"files":{}})", R"({"format_version":1,"files":{"a":{}}})",
         R"({"format_version":1,"files":{"a":{"size":-1,"blob_id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}})",
         R"({"format_version":1,"files":{"a":{"size":1.5,"blob_id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}})",
         R"({"format_version":1,"files":{"a":{"size":18446744073709551615,"blob_id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}})",
         R"({"format_version":1,"files":{"../a":{"size":1,"blob_id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}})"}) {
      CHECK_FALSE(tree_from_json(wrong));
    }
  }

  TEST_CASE("urls: origin, resolution, and the text that may be logged") {
    CHECK(url_origin("HTTPS://HuggingFace.co/api?x=1") == "https://huggingface.co:443");
    CHECK(url_origin("http://h/") == "http://h:80");
    CHECK(url_origin("https://h:8443/x") != url_origin("https://h/x"));
    CHECK(url_origin("http://user:pw@h/x") == "http://h:80");
    for (const char* wrong : {"", "file:///etc/passwd", "ftp://h/", "h/x", "http://"}) {
      CHECK_THROWS_AS(url_origin(wrong), IoError);
    }
    CHECK(resolve_url("http://h/a/b?c=1", "/x/y?z=2") == "http://h/x/y?z=2");
    CHECK(resolve_url("http://h/a", "https://other/b") == "https://other/b");
    CHECK(loggable_url("https://u:p@h/x/y?X-Amz-Signature=secret#f") == "https://h/x/y");
    for (const char* wrong : {"https://user:secret@host:port/x", "https://us er:secret@host", "user:secret@host/x"}) {
      try {
        url_origin(wrong);
        FAIL("accepted " << wrong);
      } catch (const IoError& error) {
        CHECK(std::string(error.what()).find("secret") == std::string::npos);
        CHECK(std::string(error.what()).find("@host") != std::string::npos);
      }
    }
    CHECK(percent_encode("refs/pr/5") == "refs%2Fpr%2F5");
    CHECK(percent_encode("a b/ü?#", "/") == "a%20b/%C3%BC%3F%23");
  }

  TEST_CASE("hub_settings: defaults and every variable") {
    const auto plain = settings_of({{"HOME", "/home/me"}});
    CHECK(plain.endpoint == "https://huggingface.co");
    CHECK(plain.cache_dir == "/home/me/.cache/huggingface/hub");
    CHECK(plain.token.empty());
    CHECK_FALSE(plain.offline);
    CHECK(plain.symlinks);
    CHECK(settings_of({{"HF_HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}).cache_dir == "/h/hub");
    CHECK(settings_of({{"XDG_CACHE_HOME", "/x"}}).cache_dir == "/x/huggingface/hub");
    const auto homeless = settings_of({});
    CHECK(homeless.cache_dir.empty());
    CHECK_THROWS_WITH_AS(SnapshotStore::in_cache(homeless.cache_dir, {RepoType::model, "o/n"}, true),
                         doctest::Contains("HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME are not set"), UsageError);
    CHECK_THROWS_WITH_AS(settings_of({{"HF_HOME", "~/x"}}), doctest::Contains("\"~/x\": HOME is not set"), UsageError);
    CHECK(settings_of({{"HF_HUB_CACHE", "/c"}, {"HUGGINGFACE_HUB_CACHE", "/old"}}).cache_dir == "/c");
    CHECK(settings_of({{"HUGGINGFACE_HUB_CACHE", "/old"}}).cache_dir == "/old");
    CHECK(settings_of({{"HF_ENDPOINT", "https://mirror/hf//"}}).endpoint == "https://mirror/hf");
    CHECK(settings_of({{"HF_TOKEN", " hf_x\n"}}).token == "hf_x");
    for (const char* yes : {"1", "on", "Yes", "TRUE"}) CHECK(settings_of({{"HF_HUB_OFFLINE", yes}}).offline);
    for (const char* no : {"", "0", "off", "no", "2"}) CHECK_FALSE(settings_of({{"HF_HUB_OFFLINE", no}}).offline);
    CHECK(settings_of({{"TRANSFORMERS_OFFLINE", "1"}}).offline);
    CHECK(settings_of({{"HF_HUB_DOWNLOAD_TIMEOUT", "30"}}).stall_timeout == std::chrono::seconds(30));
    CHECK_THROWS_AS(settings_of({{"HF_HUB_ETAG_TIMEOUT", "-1"}}), UsageError);
    CHECK_THROWS_AS(settings_of({{"HF_TOKEN", "hf_x\r\nHost: evil"}}), UsageError);
    CHECK_THROWS_AS(settings_of({{"HF_ENDPOINT", "file:///x"}}), UsageError);
    const test::TempDir home;
    test::write_file(home / "token", "hf_file\n");
    CHECK(settings_of({{"HF_HOME", home.path().string()}}).token == "hf_file");
    CHECK(settings_of({{"HF_HOME", home.path().string()}, {"HF_TOKEN", "hf_env"}}).token == "hf_env");
    CHECK(settings_of({{"HF_HOME", home.path().string()}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}}).token.empty());
  }

  TEST_CASE("matches: agrees with huggingface_hub") {
    CHECK(matches("*.json", "a/b.json"));
    CHECK(matches("data/", "data/a/b"));
    CHECK(matches("[!m]*", "config.json"));
    CHECK(matches("a?c", "abc"));
    CHECK(matches("a\\b*", "a\\bc"));
    CHECK_FALSE(matches("*.JSON", "a.json"));
    // As filter_repo_objects() of huggingface_hub 2.4.
    CHECK(matches("?.txt", "\u00fc.txt"));
    CHECK(matches("[\u00f6-\u00fc].txt", "\u00fc.txt"));
    CHECK(matches("??.txt", "\u65e5\u672c.txt"));
    CHECK(matches("[^a].txt", "a.txt"));
    CHECK(matches("[^a].txt", "^.txt"));
    CHECK(matches("[!a]", "\n"));
    CHECK(matches("x[[]1]", "x[1]"));
    CHECK(matches("x[1", "x[1"));
    CHECK(matches("[]]x", "]x"));
    CHECK(matches("[!]]x", "ax"));
    CHECK(matches("[a-c-e]", "-"));
    CHECK(matches("[a-]", "-"));
    CHECK(matches("[!z-a]", "q"));
    CHECK(matches("a\\b", "a/b"));
    CHECK(matches("*a*b*", "xaxb"));
    CHECK(matches("**", ""));
    CHECK_FALSE(matches("[^a].txt", "b.txt"));
    CHECK_FALSE(matches("[a-c-e]", "d"));
    CHECK_FALSE(matches("[z-a]", "q"));
    CHECK_FALSE(matches("[!]]x", "]x"));
    CHECK_FALSE(matches("?.txt", "\u65e5\u672c.txt"));
    CHECK_FALSE(matches("?", ""));
    CHECK_FALSE(matches("*a*b", "xaxbc"));
    CHECK_FALSE(matches("config", "config.json"));
  }

  TEST_CASE("select_files: leaves other formats out only if there are safetensors and no patterns") {
    const std::vector<std::string> both{"a.safetensors", "b.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
                                        "x.h5"};
    CHECK(selected(both, {}) == std::vector<std::string>{"a.safetensors", "b.json"});
    CHECK(selected({"b.json", "pytorch_model.bin"}, {}).size() == 2);
    Selection all;
    all.prefer_safetensors = false;
    CHECK(selected(both, all).size() == 5);
    CHECK(selected(both, {{"*"}, {}, 0, true}).size() == 5);
    CHECK(selected(both, {{"*"}, {"*.bin", "x*"}, 2, true}) == std::vector<std::string>{"a.safetensors", "b.json"});
    CHECK(selected(both, {{}, {"*.safetensors"}, 0, true}).size() == 4);
    CHECK_THROWS_AS(selected(both, {{"none"}, {}, 0, true}), UsageError);
    CHECK(preset_of("codellama/CodeLlama-7b-hf").include.size() == 8);
    CHECK(preset_of("laion/strategic_game_chess").type == RepoType::dataset);
    CHECK(preset_of("org/any").include.empty());
  }

  TEST_CASE("hub_failure: exit codes and no control characters from the server") {
    const HubSettings settings = settings_of({{"HF_ENDPOINT", "http://h"}});
    HubRequest request;
    request.repo = RepoId::parse(RepoType::model, "a/b");
    request.revision = "main";
    const auto code = [&](int status, HttpHeaders headers) {
      return hub_failure({status, headers}, request, settings).code();
    };
    CHECK(code(404, {}) == ExitCode::bad_input);
    CHECK(code(401, {}) == ExitCode::bad_input);
    CHECK(code(404, {{"x-error-code", "RevisionNotFound"}}) == ExitCode::bad_input);
    CHECK(code(404, {{"x-error-code", "EntryNotFound"}}) == ExitCode::bad_input);
    CHECK(code(403, {{"x-error-code", "GatedRepo"}}) == ExitCode::failed);
    CHECK(code(403, {}) == ExitCode::failed);
    CHECK(code(500, {}) == ExitCode::failed);
    auto of_file = request;
    of_file.path = "folder/a.txt";
    const std::string missing = hub_failure({404, {}}, of_file, settings).what();
    CHECK(missing.find("a/b: folder/a.txt: the hub lists") == 0);
    CHECK(hub_failure({404, {}}, of_file, settings).code() == ExitCode::bad_input);
    const std::string text = hub_failure({500, {{"x-error-message", "a\x1b[31m\nb"}}}, request, settings).what();
    CHECK(text.find("a[31mb") != std::string::npos);
    auto secret = settings;
    secret.endpoint = "https://user:secret@h/hf";
    for (const char* token : {"", "hf_x"}) {
      secret.token = token;
      const std::string gated = hub_failure({403, {{"x-error-code", "GatedRepo"}}}, request, secret).what();
      CHECK(gated.find("secret") == std::string::npos);
      CHECK(gated.find("https://h/hf/a/b") != std::string::npos);
    }
  }

  TEST_CASE("hub_failure: a secret that the server sends back is not shown") {
    auto settings = settings_of({{"HF_ENDPOINT", "https://me:passphrase@h"}});
    settings.token = "hf_SECRETtoken0123456789";
    const auto words = [&](std::string message) {
      return std::string(hub_failure({403, {{"x-error-message", std::move(message)}}}, {}, settings).what());
    };
    CHECK(words("no entry").find("no entry") != std::string::npos);
    CHECK(words("bad: Bearer hf_SECRETtoken0123456789").find("hf_S") == std::string::npos);
    CHECK(words("me:passphrase may not").find("passphrase") == std::string::npos);
    auto cut = std::string(190, '.');
    cut += "hf_SECRETtoken0123456789";
    CHECK(words(cut).find("hf_S") == std::string::npos);
  }

  TEST_CASE("url_credentials: between the scheme and the last '@' of the authority") {
    CHECK(url_credentials("https://me:p@ss@h/x") == "me:p@ss");
    CHECK(url_credentials("https://h/a@b") == "");
    CHECK(url_credentials("h") == "");
  }

  TEST_CASE("TransferRate: speed of the last seconds and time left") {
    TransferRate progress(4ull << 30);
    const TransferRate::Clock::time_point start{};
    CHECK(progress.rate() == 0);
    progress.sample(start, 0);
    for (int i = 1; i <= 60; ++i) {
      progress.sample(start + std::chrono::seconds(i), (i <= 30 ? 0ull : static_cast<std::uint64_t>(i - 30)) << 20);
    }
    CHECK(progress.rate() == doctest::Approx(1 << 20));
    CHECK(progress.line(3ull << 30) == "3.00 GiB of 4.00 GiB, 75 %, 1 MiB/s, 17:04 left");
    CHECK(TransferRate(0).line(0) == "0 KiB of 0 KiB, 100 %, 0 KiB/s");
  }
}
