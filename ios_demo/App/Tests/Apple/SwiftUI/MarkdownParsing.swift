// See Views.swift. The part of Foundation that reads Markdown, which Linux does not have.

import Foundation

extension AttributedString {
  public struct MarkdownParsingOptions: Sendable {
    public enum InterpretedSyntax: Sendable { case full, inlineOnly, inlineOnlyPreservingWhitespace }
    public enum FailurePolicy: Sendable { case throwError, returnPartiallyParsedIfPossible }
    public init(
      allowsExtendedAttributes: Bool = false, interpretedSyntax: InterpretedSyntax = .full,
      failurePolicy: FailurePolicy = .throwError, languageCode: String? = nil
    ) {}
  }
  public init(markdown: String, options: MarkdownParsingOptions = .init(), baseURL: URL? = nil) throws { self.init(markdown) }
}
