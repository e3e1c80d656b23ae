#include "base/progress.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace winnow {
namespace {

struct Screen {
  int64_t now = 1;
  int width = 80;
  bool open = true;
  std::vector<std::string> writes;

  ProgressBar::Sink sink(bool terminal) {
    return {terminal, [this] { return width; },
            [this](std::string_view s) {
              writes.emplace_back(s);
              return open;
            }};
  }
  ProgressBar::Clock clock() {
    return [this] { return now; };
  }
  void pass(double seconds) { now += static_cast<int64_t>(seconds * 1e6); }
  std::string visible() const {  // the last line as a terminal shows it
    std::string s = writes.back();
    std::erase(s, '\r');
    std::erase(s, '\n');
    if (const size_t escape = s.find("\x1b[K"); escape != std::string::npos) s.erase(escape);
    return s;
  }
};

TEST(ProgressBar, ShortWorkShowsNothing) {
  Screen s;
  ProgressBar p("Loading", ProgressBar::Unit::bytes, s.sink(true), s.clock());
  s.pass(0.3);
  p.update(50, 100);
  s.pass(0.1);
  p.update(100, 100);
  p.finish();
  EXPECT_TRUE(s.writes.empty());
}

TEST(ProgressBar, ATerminalShowsABarWithRateAndTimeLeft) {
  Screen s;
  ProgressBar p("Loading", ProgressBar::Unit::bytes, s.sink(true), s.clock());
  for (int i = 1; i <= 4; ++i) {
    s.pass(0.5);
    p.update(i * 500'000'000LL, 4'000'000'000LL);
  }
  EXPECT_EQ(s.visible(), "Loading  [=========          ]   50 %  2.00 GB of 4.00 GB  1.00 GB/s  0:02 left");
  EXPECT_EQ(s.visible().size(), 79u);
  EXPECT_EQ(s.writes.back().front(), '\r');
  s.pass(2.0);
  p.update(4'000'000'000LL, 4'000'000'000LL);
  p.finish();
  EXPECT_NE(s.visible().find("100 %  4.00 GB of 4.00 GB  1.00 GB/s  in 0:04"), std::string::npos) << s.visible();
  EXPECT_EQ(s.writes.back().back(), '\n');
  const size_t count = s.writes.size();
  p.finish();
  p.update(1, 2);
  EXPECT_EQ(s.writes.size(), count) << "nothing after the end";
}

TEST(ProgressBar, NeverWiderThanTheTerminal) {
  for (int width = 1; width < 140; ++width) {
    Screen s;
    s.width = width;
    ProgressBar p("Loading weights", ProgressBar::Unit::bytes, s.sink(true), s.clock());
    s.pass(1);
    p.update(123'456'789, 328'326'771'576);
    EXPECT_LT(static_cast<int>(s.visible().size()), std::max(width, 2)) << s.visible();
  }
}

TEST(ProgressBar, RedrawsAtMostTenTimesASecond) {
  Screen s;
  ProgressBar p("Loading", ProgressBar::Unit::items, s.sink(true), s.clock());
  for (int i = 0; i < 3000; ++i) {
    s.pass(0.001);
    p.update(i, 3000);
  }
  EXPECT_LE(s.writes.size(), 26u);
  EXPECT_GE(s.writes.size(), 24u);
}

TEST(ProgressBar, ElsewhereThereArePlainLinesNowAndThen) {
  Screen s;
  ProgressBar p("Converting", ProgressBar::Unit::items, s.sink(false), s.clock());
  for (int i = 1; i <= 120; ++i) {
    s.pass(0.1);
    p.update(i, 120);
  }
  p.finish();
  ASSERT_EQ(s.writes.size(), 4u);
  for (const std::string& w : s.writes) {
    EXPECT_EQ(w.find('\r'), std::string::npos);
    EXPECT_EQ(w.find('\x1b'), std::string::npos);
    EXPECT_EQ(w.back(), '\n');
  }
  EXPECT_EQ(s.writes[1], "Converting:  45 %  55/120  10/s  0:07 left\n");
  EXPECT_EQ(s.writes[3], "Converting: 100 %  120/120  10/s  in 0:12\n");
}

TEST(ProgressBar, AClosedSinkIsLeftAlone) {
  Screen s;
  s.open = false;
  ProgressBar p("Loading", ProgressBar::Unit::bytes, s.sink(true), s.clock());
  for (int i = 0; i < 50; ++i) {
    s.pass(1);
    p.update(i, 50);
  }
  p.finish();
  EXPECT_EQ(s.writes.size(), 1u);
}

TEST(ProgressBar, NoTotalIsNoDivision) {
  Screen s;
  ProgressBar p("Loading", ProgressBar::Unit::bytes, s.sink(true), s.clock());
  s.pass(1);
  p.update(0, 0);
  EXPECT_NE(s.visible().find("0 %"), std::string::npos);
}

// In a child, since it closes standard error.
TEST(ProgressBar, ABrokenOrClosedStandardErrorDoesNotEndTheProgram) {
  for (bool broken_pipe : {true, false}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGPIPE, SIG_DFL);
      int fd[2];
      if (broken_pipe) {
        if (::pipe(fd) != 0) ::_exit(2);
        ::dup2(fd[1], STDERR_FILENO);
        ::close(fd[0]);
        ::close(fd[1]);
      } else {
        ::close(STDERR_FILENO);
      }
      int64_t now = 1;
      ProgressBar p("Loading", ProgressBar::Unit::bytes, ProgressBar::standard_error(), [&] { return now; });
      for (int i = 0; i < 10; ++i) {
        now += 10'000'000;
        p.update(i, 10);
      }
      p.finish();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << (broken_pipe ? "broken pipe" : "closed");
  }
}

TEST(ProgressBar, Texts) {
  EXPECT_EQ(bytes_text(17), "17 B");
  EXPECT_EQ(bytes_text(999.6), "1.00 kB");
  EXPECT_EQ(bytes_text(812e3), "812 kB");
  EXPECT_EQ(bytes_text(12.34e9), "12.3 GB");
  EXPECT_EQ(bytes_text(328326771576.0), "328 GB");
  EXPECT_EQ(duration_text(6.6), "0:07");
  EXPECT_EQ(duration_text(3725), "1:02:05");
  EXPECT_EQ(duration_text(-1), "-");
}

}  // namespace
}  // namespace winnow
