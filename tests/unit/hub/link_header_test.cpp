#include "lib/hub/http_client.hpp"

#include <doctest/doctest.h>

#include "lib/base/types/error.hpp"

using fsdp::next_link;

TEST_SUITE("hub/link_header") {
  TEST_CASE("accepts every spelling of the relation next") {
    for (const char* field : {"<u>; rel=\"next\"",
                              "<u>; rel=next",
                              "<u>;rel=next",
                              "<u> ; rel = \"next\"",
                              "<u>\t;\trel\t=\tnext",
                              "<u>; REL=\"next\"",
                              "<u>; rel=\"NEXT\"",
                              "<u>; rel=\"next last\"",
                              "<u>; rel=\"last  next\"",
                              "<u>; title=\"a>b\"; rel=\"next\"",
                              "<u>; title=\"a, <v>; rel=x\"; rel=next",
                              "<u>; title=\"\\\"\"; rel=next",
                              "<u>; title*=UTF-8'de'n%c3%a4chstes; rel=next",
                              "<u>; rel=next; rel=prev",
                              "<u>; rel=next;",
                              "<u>;; rel=next",
                              "<u>; crossorigin; rel=next",
                              ", ,<u>; rel=next",
                              "<v>; rel=\"first\", <u>; rel=\"next\"",
                              "<v>,<w>; rel=prev,<u>; rel=next, <x>; rel=next",
                              "<a,b;c>; rel=first, <u>; rel=\"next\""}) {
      CAPTURE(field);
      CHECK(next_link(field) == "u");
    }
    CHECK(next_link("<https://h/t?cursor=a,b;c=%22&x=\">; rel=next") == "https://h/t?cursor=a,b;c=%22&x=\"");
    CHECK(next_link("<?cursor=5>; rel=next") == "?cursor=5");
    CHECK(next_link("<>; rel=next") == "");
  }

  TEST_CASE("ignores other relations and malformed fields") {
    for (const char* field : {"", " ", ",", "<u>", "<next>; rel=last", "<u>; rel=\"nextish\"",
                              "<u>; title=\"rel=next\"", "<u>; rel=prev; rel=next", "<u>; rel", "<u>; xrel=next",
                              "<style.css>; rel=preload; as=style", "nonsense", "<u", "<u>; title=\"open"}) {
      CAPTURE(field);
      CHECK_FALSE(next_link(field));
    }
  }

  TEST_CASE("refuses an unreadable field that mentions next") {
    for (const char* field : {"u; rel=next", "<u; rel=next", "<u> rel=next", "<u>; title=\"open; rel=next"}) {
      CAPTURE(field);
      CHECK_THROWS_AS(next_link(field), fsdp::FormatError);
    }
  }
}
