import Foundation
import StreamFuseCore
import XCTest

@testable import AppModel

/// What the user types.
final class SettingsTests: AppTestCase {
  func testNumbersInRangeCountAndSurviveTheProcess() async throws {
    let store = start().settings
    for (field, text) in [
      (Field.temperature, " 0,7 "), (.topK, "40"), (.topP, "1"), (.minP, ".05"), (.repetitionPenalty, "1.1"),
      (.seed, "9223372036854775807"), (.maxNewTokens, "64.0"), (.threads, "4"),
    ] { try store.set(field, text) }
    store.set(.on)
    store.setSystemPrompt("Be brief.")
    for option in Switch.allCases {
      XCTAssertFalse(option.isOn(store.settings))
      store.set(option, true)
    }
    let again = start().settings
    XCTAssertEqual(again.settings, store.settings)
    let config = again.settings.config
    XCTAssertEqual(config.temperature, 0.7)
    XCTAssertEqual(config.topK, 40)
    XCTAssertEqual(config.topP, 1)
    XCTAssertEqual(config.minP, 0.05)
    XCTAssertEqual(config.repetitionPenalty, 1.1)
    XCTAssertEqual(config.seed, 9_223_372_036_854_775_807)
    XCTAssertEqual(config.maxNewTokens, 64)
    XCTAssertEqual(config.enableSpeculativeDecoding, true)
    XCTAssertEqual(again.settings.loading.threads, 4)
    again.clear()
    XCTAssertEqual(start().settings.settings, Settings())
  }

  func testInvalidNumbersAreRefusedWithAMessageAndChangeNothing() async throws {
    let store = start().settings
    try store.set(.topP, "0.5")
    for (field, text, message) in [
      (Field.topP, "zero", "\"zero\" is not a number."), (.topP, "1e", "\"1e\" is not a number."),
      (.topP, "0", "It must be above 0 and at most 1, not 0."), (.topP, "1.01", "It must be above 0 and at most 1, not 1.01."),
      (.topK, "2.5", "It must be a whole number, not 2.5."), (.temperature, "-1", "It must be at least 0, not -1."),
      (.repetitionPenalty, "0", "It must be above 0, not 0."), (.minP, "2", "It must be from 0 to 1, not 2."),
      (.seed, "9223372036854775808", "It must be from 0 to 9223372036854775807, not 9223372036854775808."),
      (.threads, "0", "It must be from 1 to 64, not 0."),
    ] {
      XCTAssertThrowsError(try store.set(field, text)) { XCTAssertEqual(sentence(of: $0), message) }
    }
    XCTAssertEqual(store.settings.numbers, [.topP: "0.5"])
    try store.set(.topP, "")
    XCTAssertEqual(store.settings.numbers, [:])
  }

  func testWhatAnotherVersionKeptAndIsOutOfRangeByNowIsForgotten() async {
    defaults.set("99", forKey: "threads")
    defaults.set("sometimes", forKey: "speculation")
    XCTAssertEqual(start().settings.settings, Settings())
  }

  func testAPresetSetsHowTokensAreChosenAndNothingElse() async throws {
    let store = start().settings
    try store.set(.topK, "7")
    try store.set(.seed, "3")
    for preset in Preset.allCases {
      store.set(preset)
      XCTAssertEqual(Preset.allCases.filter { $0.isIn(store.settings) }, [preset])
      XCTAssertNil(store.settings.numbers[.topK])
      XCTAssertEqual(store.settings.numbers[.seed], "3")
      XCTAssertEqual(start().settings.settings, store.settings, "in the next process too")
    }
    store.slide(.temperature, to: 0.3)
    XCTAssertEqual(Preset.allCases.filter { $0.isIn(store.settings) }, [])
  }

  func testASliderStandsAtTheNumberThatCounts() async throws {
    let store = start().settings
    var defaults = GenerationConfig()
    (defaults.temperature, defaults.topK) = (0.2, 50)
    XCTAssertEqual(store.shown(.temperature, defaults), "Default: 0.2")
    XCTAssertEqual(store.position(.temperature, defaults), 0.2)
    XCTAssertEqual(store.shown(.topK, defaults), "Default: 50")
    XCTAssertEqual(store.shown(.threads, defaults), "Automatic")
    store.slide(.temperature, to: 0.1 + 0.2)
    XCTAssertEqual(store.shown(.temperature, defaults), "0.3")
    try store.set(.topK, "4000")
    XCTAssertEqual(store.position(.topK, defaults), 100, "the last place, of a number that was typed")
    XCTAssertEqual(store.shown(.topK, defaults), "4000")
    for field in Field.allCases where field.slider != nil {
      for end in [field.slider!.range.lowerBound, field.slider!.range.upperBound] {
        store.reset(field)
        store.slide(field, to: end)
        XCTAssertEqual(store.position(field, defaults), end, "\(field) reaches its ends")
      }
    }
  }

  func testAnotherAnswerIsSampledAndHasASeedOfItsOwn() async {
    var defaults = GenerationConfig()
    defaults.temperature = 0
    let again = Settings().config.another(defaults, seed: 5)
    XCTAssertEqual(again.seed, 5)
    XCTAssertEqual(again.temperature, 0.7)
    defaults.temperature = 0.4
    XCTAssertNil(Settings().config.another(defaults, seed: 5).temperature, "the bundle samples already")
  }
}
