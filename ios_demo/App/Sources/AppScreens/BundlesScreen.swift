#if canImport(UIKit)
  import AppModel
  import StreamFuseCore
  import SwiftUI
  import UniformTypeIdentifiers

  /// The bundles on this device, and a way to bring one in.
  struct BundlesScreen: View {
    /// The bundles.
    let bundles: BundlesModel

    @State private var picking = false
    @State private var asking = false
    @State private var deleting: InstalledBundle?
    @State private var address: String

    init(bundles: BundlesModel) {
      self.bundles = bundles
      _address = State(initialValue: bundles.catalog)
    }

    var body: some View {
      List {
        if bundles.installed == [] && bundles.importing == nil {
          Text(.noneInstalled).foregroundStyle(Color(.textSecondary))
        }
        ForEach(bundles.installed ?? []) { row($0) }
        if let message = bundles.message {
          Text(verbatim: message).textSelection(.enabled)
        }
        if let importing = bundles.importing {
          progress(importing)
        } else {
          Button { picking = true } label: { Text(.importFolder) }
        }
        Section {
          TextField(Word.catalogHint(), text: $address)
            .keyboardType(.URL)
            .accessibilityLabel(Text(.catalogLabel))
          Button { bundles.ask(address) } label: { Text(bundles.isAsking ? .catalogAsking : .catalogShow) }
            .disabled(bundles.isAsking)
          ForEach(bundles.offers) { OfferRow(offer: $0, bundles: bundles) }
        } header: {
          Text(.catalogLabel)
        }
      }
      .navigationTitle(Text(.bundles))
      .fileImporter(isPresented: $picking, allowedContentTypes: [.folder]) { picked in
        switch picked {
        case .success(let folder): bundles.take(folder)
        case .failure(let error): bundles.report(error)
        }
      }
      .alert(
        Text(verbatim: Word.deleteQuestion(deleting?.name ?? "")),
        isPresented: $asking, presenting: deleting
      ) { bundle in
        Button(role: .destructive) { bundles.delete(bundle.name) } label: { Text(.delete) }
        Button(role: .cancel) {} label: { Text(.cancel) }
      }
      .onChange(of: bundles.message) { _, message in announce(message) }
    }

    private func row(_ bundle: InstalledBundle) -> some View {
      let chosen = bundle.name == bundles.chosen
      let bytes = size(bundle.bytes)
      return HStack {
        Button { bundles.choose(bundle.name) } label: {
          HStack {
            Image(systemName: chosen ? "largecircle.fill.circle" : "circle").foregroundStyle(Color(.accent))
            Text(verbatim: Word.bundleRow(bundle.name, bytes)).foregroundStyle(Color(.text))
          }
          .frame(maxWidth: .infinity, minHeight: 44, alignment: .leading)
        }
        .accessibilityLabel(Text(verbatim: (chosen ? Word.inUse : Word.useNamed)(bundle.name, bytes)))
        Button {
          deleting = bundle
          asking = true
        } label: {
          Image(systemName: "trash").frame(width: 44, height: 44)
        }
        .accessibilityLabel(Text(verbatim: Word.deleteNamed(bundle.name)))
      }
      .buttonStyle(.borderless)  // else a tap anywhere in the row presses both
    }

    @ViewBuilder private func progress(_ progress: BundleProgress) -> some View {
      switch progress {
      case .receiving(let done, let total) where total > 0:
        ProgressView(value: Double(done), total: Double(total)) { Text(verbatim: progress.text) }
      default:
        ProgressView { Text(verbatim: progress.text) }
      }
      Button { bundles.cancel() } label: { Text(.cancel) }
    }
  }

  /// A published bundle, and what can be done with it.
  private struct OfferRow: View {
    let offer: Offer
    let bundles: BundlesModel

    var body: some View {
      VStack(alignment: .leading) {
        Text(verbatim: offer.entry.title).foregroundStyle(Color(.text))
        Text(verbatim: offer.facts).foregroundStyle(Color(.textSecondary))
        if let text = offer.text { Text(verbatim: text).foregroundStyle(Color(.textSecondary)) }
        if let fraction = offer.fraction {
          ProgressView(value: fraction)
        }
        buttons
      }
    }

    @ViewBuilder private var buttons: some View {
      let entry = offer.entry
      HStack {
        switch offer.state {
        case .available:
          Button { bundles.download(entry) } label: { Text(.download) }
            .accessibilityLabel(Text(verbatim: Word.downloadNamed(entry.title)))
        case .downloading:
          Button { bundles.pause(entry) } label: { Text(.pause) }
            .accessibilityLabel(Text(verbatim: Word.pauseNamed(entry.title)))
        case .paused:
          Button { bundles.download(entry) } label: { Text(.resume) }
            .accessibilityLabel(Text(verbatim: Word.resumeNamed(entry.title)))
          Button { bundles.discard(entry) } label: {
            Image(systemName: "trash").frame(width: 44, height: 44)
          }
          .accessibilityLabel(Text(verbatim: Word.discardNamed(entry.title)))
        case .unsupported, .checking, .installed:
          Text(verbatim: "")
        }
      }
      .buttonStyle(.borderless)  // else a tap anywhere in the row presses all
    }
  }
#endif
